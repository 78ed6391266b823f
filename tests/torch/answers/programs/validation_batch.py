# SPDX-License-Identifier: MIT OR Apache-2.0
"""Validation under no_grad with a batch that is far larger than that of training."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(1024, 8192), nn.GELU(), nn.Linear(8192, 1024))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4096, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    batch = torch.randn(131072, 1024, device="cuda")
    for part in batch.chunk(2) if os.environ.get("FIXED") else [batch]:
        model(part).mean().item()  # <- here
