# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gradient checkpointing "does nothing": the peak is the optimizer's step."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6144, 6144, bias=False) for _ in range(10))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: torch.sigmoid(layer(x)), x, use_reentrant=False)
        return x


with torch.device("cuda"):
    model = Model()
optimizer = torch.optim.Adam(model.parameters(), fused=True if os.environ.get("FIXED") else None)
for _ in range(3):
    model(torch.zeros(512, 6144, device="cuda")).sum().backward()
    optimizer.step()  # <- here
    optimizer.zero_grad()
