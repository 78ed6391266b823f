# SPDX-License-Identifier: MIT OR Apache-2.0
"""The activations of sixteen blocks that end in a normalisation, as those of BERT do, make the peak."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)
        self.norm = nn.LayerNorm(512)

    def forward(self, x):
        return self.norm(x + torch.sigmoid(self.second(torch.sigmoid(self.first(x)))))  # <- here


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(16))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if os.environ.get("FIXED") else block(x)
        return x


with torch.device("cuda"):
    model = Model()
    batch = torch.zeros(1 << 17, 512)  # 256 MiB
model(batch).sum().backward()
