# SPDX-License-Identifier: MIT OR Apache-2.0
"""Accumulates gradients of four micro-batches of a vision transformer."""

import torch
from torch import nn

MICRO, BATCH, PATCHES, WIDTH = 4, 16, 196, 768


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.positions = nn.Parameter(torch.zeros(1, PATCHES, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(x).mean(1))


model = Vision().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
running = torch.zeros((), device="cuda")
for step in range(3):
    for _ in range(MICRO):
        images = torch.rand(BATCH, 3, 224, 224, device="cuda")
        labels = torch.randint(100, (BATCH,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels) / MICRO
        loss.backward()
        running += loss.detach()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
