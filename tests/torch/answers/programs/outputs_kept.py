# SPDX-License-Identifier: MIT OR Apache-2.0
"""Outputs are detached and kept for a metric, on the device."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 16000))
optimizer = torch.optim.AdamW(model.parameters())
history = []
for _ in range(40):
    output = model(torch.randn(4096, 512, device="cuda"))
    output.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(output.detach().cpu() if os.environ.get("FIXED") else output.detach())  # <- here
