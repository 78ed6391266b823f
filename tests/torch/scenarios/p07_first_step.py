# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 7: forward and backward fit, the first step of the optimizer does not."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters(), fused=True if os.environ.get("FIXED") else None)
for _ in range(3):
    model(torch.zeros(64, 8192, device="cuda")).sum().backward()
    optimizer.step()  # <- here
    optimizer.zero_grad()
