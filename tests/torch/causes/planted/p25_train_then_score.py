# SPDX-License-Identifier: MIT OR Apache-2.0
"""Alternates between training on a few rows and scoring many."""

import os

import torch
from torch import nn

WIDTH = 4096
model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.SiLU()) for _ in range(16)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps):
    for _ in range(steps):
        x = torch.randn(64, WIDTH, device="cuda")
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()  # <- here
        optimizer.step()
    if os.environ.get("FIXED"):
        optimizer.zero_grad()


@torch.no_grad()
def score(rows):
    return model(torch.randn(rows, WIDTH, device="cuda")).norm(dim=1)


for _ in range(2):
    train(2)
    print(score(65536).shape)
