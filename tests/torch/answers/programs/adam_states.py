# SPDX-License-Identifier: MIT OR Apache-2.0
"""Weights and gradients fit; with Adam's two states the job needs more than twice the GPU."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(32)])  # 2 GiB
optimizer = torch.optim.AdamW(model.parameters(), fused=True if os.environ.get("FIXED") else None)
for _ in range(2):
    model(torch.randn(64, 4096, device="cuda")).mean().backward()
    optimizer.step()  # <- here
    optimizer.zero_grad()
