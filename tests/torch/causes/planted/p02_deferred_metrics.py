# SPDX-License-Identifier: MIT OR Apache-2.0
"""Super-resolution with sub-pixel convolution; the report is made after training."""

import os

import torch
import torch.nn.functional as F
from torch import nn

FIXED = bool(os.environ.get("FIXED"))


class SuperResolution(nn.Module):
    def __init__(self, channels=32, scale=2):
        super().__init__()
        self.extract = nn.Conv2d(3, channels, 3, padding=1)
        self.expand = nn.Conv2d(channels, 3 * scale**2, 3, padding=1)
        self.shuffle = nn.PixelShuffle(scale)

    def forward(self, low):
        return self.shuffle(self.expand(torch.tanh(self.extract(low))))


def psnr(prediction, target):
    return -10 * torch.log10((prediction - target).square().mean())


def make_report(prediction, target):
    if FIXED:
        value = psnr(prediction, target)
        return lambda: value

    def report():
        return psnr(prediction, target)

    return report


model = SuperResolution().cuda()
adam = torch.optim.Adam(model.parameters(), lr=1e-4)
pending = []


def train_step():
    high = torch.rand(32, 3, 1024, 1024, device="cuda")
    low = F.avg_pool2d(high, 2)
    prediction = model(low)
    F.mse_loss(prediction, high).backward()
    adam.step()
    adam.zero_grad()
    pending.append(make_report(prediction.detach(), high))  # <- here


for _ in range(6):
    train_step()
print(len(pending), "reports")
