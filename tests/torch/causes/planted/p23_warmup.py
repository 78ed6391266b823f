# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two warm-up steps with a small learning rate, then the real training."""

import os

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(3072, 3072), nn.Tanh()) for _ in range(8)]).cuda()
warmup = torch.optim.Adam(model.parameters(), lr=1e-6)  # <- here
if os.environ.get("FIXED"):
    optimizer = warmup
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # <- here

for step in range(6):
    chosen = warmup if step < 2 else optimizer
    for group in chosen.param_groups:
        group["lr"] = 1e-6 if step < 2 else 1e-3
    x = torch.randn(512, 3072, device="cuda")
    loss = (model(x) - x).abs().mean()
    chosen.zero_grad()
    loss.backward()
    chosen.step()
