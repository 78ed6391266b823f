# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a small language model on batches whose length varies, as that of real text does."""

import random

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LAYERS, BATCH = 32_000, 1024, 4, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(F.gelu(self.up(self.norm(hidden))))


random.seed(3)
blocks = [Block() for _ in range(LAYERS)]
model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(6):
    tokens = torch.zeros(BATCH, random.randrange(128, 1024, 8), dtype=torch.long, device="cuda")
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
