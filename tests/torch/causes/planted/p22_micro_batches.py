# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gradient accumulation over six micro-batches."""

import os

import torch
from torch import nn

FIXED = os.environ.get("FIXED") == "1"
WIDTH, DEPTH, ROWS, MICRO = 2048, 8, 4096, 6
stack = [m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU())]
model = nn.Sequential(*stack, nn.Linear(WIDTH, 1)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def micro_loss():
    x = torch.randn(ROWS, WIDTH, device="cuda")
    return model(x).square().mean() / MICRO


for step in range(3):
    total = 0.0
    for _ in range(MICRO):
        loss = micro_loss()
        if FIXED:
            loss.backward()
            loss = loss.detach()
        total = total + loss  # <- here
    if not FIXED:
        total.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    del total, loss
