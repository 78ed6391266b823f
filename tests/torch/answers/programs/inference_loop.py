# SPDX-License-Identifier: MIT OR Apache-2.0
"""A model only computes its outputs, in training mode and with gradients on."""

import contextlib
import os

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(24))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


net = Net().cuda()
means = []
with torch.no_grad() if os.environ.get("FIXED") else contextlib.nullcontext():
    for _ in range(6):
        out = net(torch.randn(16384, 1024, device="cuda"))  # <- here
        means.append(out.mean().item())
