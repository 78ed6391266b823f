# SPDX-License-Identifier: MIT OR Apache-2.0
"""One more: memory grows with every step, because outputs are kept for a statistic."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(512, 512), nn.Sigmoid(), nn.Linear(512, 8192))
optimizer = torch.optim.SGD(model.parameters())
history = []
for _ in range(12):
    output = model(torch.zeros(16384, 512, device="cuda"))  # <- here
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(output.mean().item() if os.environ.get("FIXED") else output.detach())
    del output
