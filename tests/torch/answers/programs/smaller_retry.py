# SPDX-License-Identifier: MIT OR Apache-2.0
"""The batch is halved until it fits, as many trainers do."""

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size, done = 65536, 0
while done < 3:
    try:
        model(torch.randn(size, 2048, device="cuda")).mean().backward()
    except torch.OutOfMemoryError:
        size //= 2
        optimizer.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
    done += 1
print("batch", size)
