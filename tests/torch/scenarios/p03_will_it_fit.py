# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 3: will it fit? Weights, gradients and states were counted, the step's copies were not."""

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.Linear(4096, 131072, bias=False))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.zeros(8, 4096, device="cuda")).sum().backward()
    optimizer.step()  # <- here
    optimizer.zero_grad()
