# SPDX-License-Identifier: MIT OR Apache-2.0
"""Losses are added up for a statistic, each with its graph; nothing is trained."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(8)])
total = 0
for _ in range(40):
    batch = torch.randn(8192, 2048, device="cuda")
    loss = model(batch).pow(2).mean()
    total = total + (loss.item() if os.environ.get("FIXED") else loss)  # <- here
print("loss", float(total) / 40)
