# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a small model whose flow depends on no value: recordings with and without values must be the same."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
kind = sys.argv[1]
if kind == "transformer":
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 3), nn.Linear(256, 1000)).cuda()
    data = lambda: torch.randint(0, 1000, (8, 128), device="cuda")  # noqa: E731
else:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3, 2), nn.BatchNorm2d(64),
        nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10),
    ).cuda()  # fmt: skip
    data = lambda: torch.randn(16, 3, 64, 64, device="cuda")  # noqa: E731
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler()
for _ in range(3):
    # Not under autocast: torch frees the casts that it caches in an order that depends on addresses of the host.
    out = model(data())
    labels = torch.randint(0, 10, out.shape[:-1], device="cuda")
    loss = nn.functional.cross_entropy(out.flatten(0, -2), labels.flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(loss.item())
