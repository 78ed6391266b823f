# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batches are copied to the device ahead of time, never more than three."""

from collections import deque

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ahead = deque()
for _ in range(12):
    ahead.append(torch.zeros(16384, 4096).to("cuda", non_blocking=True))
    if len(ahead) == 3:
        model(ahead.popleft()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
