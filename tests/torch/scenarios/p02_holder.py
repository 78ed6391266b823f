# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 2: the message of an out-of-memory does not say what holds the memory: here activations."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)

    def forward(self, x):
        return torch.sigmoid(self.linear(x))  # <- here


with torch.device("cuda"):
    model = nn.Sequential(*[Block() for _ in range(16)])
    x = torch.zeros(1 << 19, 512)  # 1 GiB
loss = model(x).sum()
loss.backward()
