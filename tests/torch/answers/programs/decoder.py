# SPDX-License-Identifier: MIT OR Apache-2.0
"""A decoder at full resolution takes more than all of the generation before it."""

import os

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Upsample(scale_factor=8)
        self.convolution = nn.Conv2d(64, 64, 3, padding=1)
        self.last = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, latent):
        return self.last(torch.sigmoid(self.convolution(self.up(latent))))  # <- here


with torch.device("cuda"):
    unet = nn.Sequential(*[nn.Conv2d(64, 64, 3, padding=1) for _ in range(4)])
    decoder = Decoder()
    latent = torch.zeros(4, 64, 128, 128)
images = []
with torch.no_grad():
    for _ in range(4):
        latent = unet(latent)
    for part in latent.chunk(2) if os.environ.get("FIXED") else [latent]:
        images.append(decoder(part).cpu())
