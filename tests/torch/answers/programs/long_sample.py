# SPDX-License-Identifier: MIT OR Apache-2.0
"""One sample is twelve times as long as the others."""

import os

import torch
from torch import nn

LENGTHS = [512, 500, 480, 512, 6144, 512]
with torch.device("cuda"):
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6)
optimizer = torch.optim.AdamW(model.parameters())
for length in LENGTHS:
    if os.environ.get("FIXED"):
        length = min(length, 512)
    batch = torch.randn(8, length, 512, device="cuda")
    model(batch).mean().backward()  # <- here
    optimizer.step()
    optimizer.zero_grad()
