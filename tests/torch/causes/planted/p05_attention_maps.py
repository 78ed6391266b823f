# SPDX-License-Identifier: MIT OR Apache-2.0
"""A sequence classifier that remembers its attention maps for a figure."""

import os

import torch
import torch.nn.functional as F
from torch import nn


class MapAttention(nn.Module):
    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.maps = []

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        if os.environ.get("FIXED"):
            self.maps = []
        self.maps.append(weights.detach())  # <- here
        return (weights @ v).transpose(1, 2).flatten(2)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MapAttention()
        self.head = nn.Linear(512, 5)

    def forward(self, x):
        return self.head(self.attention(x).mean(dim=1))


def main():
    model = Classifier().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for _ in range(6):
        x = torch.randn(8, 1024, 512, device="cuda")
        y = torch.randint(5, (8,), device="cuda")
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("last map:", tuple(model.attention.maps[-1].shape))


if __name__ == "__main__":
    main()
