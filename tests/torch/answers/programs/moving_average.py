# SPDX-License-Identifier: MIT OR Apache-2.0
"""A moving average of the weights is kept on purpose, and used at the end."""

import copy

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)])  # 512 MiB
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(64, 4096, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.01)
with torch.no_grad():
    average(torch.randn(64, 4096, device="cuda"))
