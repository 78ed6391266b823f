# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a deep network on small batches and tests it on the whole hold-out set."""

import os

import torch
from torch import nn

ROWS, WIDTH, DEPTH = 65536, 1024, 12
blocks = []
for _ in range(DEPTH):
    blocks += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def train():
    model.train()
    for _ in range(3):
        x = torch.randn(2048, WIDTH, device="cuda")
        y = torch.randint(0, 10, (2048,), device="cuda")
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def test():
    model.eval()
    x = torch.randn(ROWS, WIDTH, device="cuda")
    y = torch.randint(0, 10, (ROWS,), device="cuda")
    with torch.set_grad_enabled(not os.environ.get("FIXED")):
        return (model(x).argmax(1) == y).float().mean()  # <- here


for _ in range(2):
    train()
    test()
