# SPDX-License-Identifier: MIT OR Apache-2.0
"""Evaluation without no_grad that collects its losses: each keeps the graph of its batch."""

import contextlib
import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(12)])
optimizer = torch.optim.AdamW(model.parameters())


def evaluate():
    model.eval()
    losses = []
    for _ in range(20):
        batch = torch.randn(8192, 2048, device="cuda")
        loss = model(batch).mean()  # <- here
        losses.append(loss.detach() if os.environ.get("FIXED") == "2" else loss)  # <- here
    return torch.stack(losses).mean()


for _ in range(3):
    model(torch.randn(8192, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad() if os.environ.get("FIXED") == "1" else contextlib.nullcontext():
    evaluate()
