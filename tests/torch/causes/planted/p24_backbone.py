# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fine-tunes the head of a network; the backbone has a learning rate of zero."""

import os

import torch
from torch import nn

backbone = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.ReLU()) for _ in range(8)]).cuda()
head = nn.Linear(4096, 100).cuda()
groups = [{"params": head.parameters(), "lr": 1e-3}]
if os.environ.get("FIXED"):
    backbone.requires_grad_(False)
else:
    groups.append({"params": backbone.parameters(), "lr": 0.0})  # <- here
optimizer = torch.optim.AdamW(groups, fused=True)  # <- here

for _ in range(4):
    x = torch.randn(256, 4096, device="cuda")
    y = torch.randint(100, (256,), device="cuda")
    loss = nn.functional.cross_entropy(head(backbone(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
