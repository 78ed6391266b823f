# SPDX-License-Identifier: MIT OR Apache-2.0
"""All that lasts fits; the temporary copies of a step of the optimizer do not."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(24)])  # 1.5 GiB
optimizer = torch.optim.AdamW(model.parameters(), fused=True if os.environ.get("FIXED") else None)
for _ in range(3):
    model(torch.randn(64, 4096, device="cuda")).mean().backward()
    optimizer.step()  # <- here
    optimizer.zero_grad()
