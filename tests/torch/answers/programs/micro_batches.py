# SPDX-License-Identifier: MIT OR Apache-2.0
"""The losses of all micro-batches are summed before one backward pass: right, and expensive."""

import os

import torch
from torch import nn

MICRO = 8
with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = 0
    for _ in range(MICRO):
        part = model(torch.randn(8192, 2048, device="cuda")).pow(2).mean() / MICRO
        if os.environ.get("FIXED"):
            part.backward()
        else:
            loss = loss + part  # <- here
    if not os.environ.get("FIXED"):
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
