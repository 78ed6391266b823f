# SPDX-License-Identifier: MIT OR Apache-2.0
"""Self-attention with linear biases, trained on sentences of growing length."""

import functools
import os

import torch
from torch import nn

HEADS, DIM = 16, 64


@functools.lru_cache(maxsize=0 if os.environ.get("FIXED") else None)
def distance_bias(length):
    positions = torch.arange(length, device="cuda")
    distance = (positions[None, :] - positions[:, None]).abs().neg()
    slopes = torch.logspace(0, -8, HEADS, base=2.0, device="cuda")
    return slopes[:, None, None] * distance  # <- here


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.out = nn.Linear(HEADS * DIM, HEADS * DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, DIM).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / DIM**0.5 + distance_bias(t)
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, -1))


attention = Attention().to("cuda")
optimizer = torch.optim.AdamW(attention.parameters())


def step(length):
    x = torch.randn(1, length, HEADS * DIM, device="cuda")
    attention(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


for length in (1024, 1280, 1536, 1792, 2048):
    step(length)
