# SPDX-License-Identifier: MIT OR Apache-2.0
"""The batch doubles every time; the images have one size."""

import os

import torch
from torch import nn

SIZES = (4, 8, 16, 32, 64)
with torch.device("cuda"):
    model = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1))
for size in SIZES:
    if os.environ.get("FIXED"):
        size = min(size, 32)
    images = torch.randn(size, 64, 256, 256, device="cuda")
    model(images).mean().backward()  # <- here
