# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gradients accumulate over micro-batches, each each with its backward pass; losses are kept as numbers."""

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for _ in range(4):
    for _ in range(4):
        loss = model(torch.randn(8192, 2048, device="cuda")).pow(2).mean() / 4
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
