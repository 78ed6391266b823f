# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gradients of each micro-batch are cloned and kept."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)])  # 512 MiB
saved = []
for _ in range(16):
    model(torch.randn(64, 4096, device="cuda")).mean().backward()
    where = "cpu" if os.environ.get("FIXED") else "cuda"
    saved.append([p.grad.to(where, copy=True) for p in model.parameters()])  # <- here
    model.zero_grad()
