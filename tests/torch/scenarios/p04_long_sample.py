# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 4: dies after some steps, at the first long sample."""

import os

import torch
from torch import nn

LENGTHS = [1024, 900, 1024, 700, 6144, 1024, 800]
CAP = 1024 if os.environ.get("FIXED") else 8192


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x))  # <- here
        return x


with torch.device("cuda"):
    model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for length in LENGTHS:
    batch = torch.zeros(64, min(length, CAP), 1024, device="cuda")
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del batch
