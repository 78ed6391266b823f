# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention written out: twelve layers keep a matrix of tokens times tokens for each head."""

import os

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS = 512, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if os.environ.get("FIXED"):
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = (q @ k.transpose(-1, -2)) / 8  # <- here
            mixed = scores.softmax(-1) @ v  # <- here
        return x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))


with torch.device("cuda"):
    model = nn.Sequential(*[Attention() for _ in range(12)])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(4, 4096, WIDTH, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
