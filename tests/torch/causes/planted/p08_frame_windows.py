# SPDX-License-Identifier: MIT OR Apache-2.0
"""Video enhancement over a sliding window of frames."""

import os

import torch
from torch import nn

WINDOW = 4


def camera(count):
    for _ in range(count):
        yield torch.rand(16, 3, 1024, 1024, device="cuda")


def windows(stream, length):
    frames = []
    for frame in stream:
        frames.append(frame)  # <- here
        if os.environ.get("FIXED"):
            del frames[:-length]
        if len(frames) >= length:
            yield torch.cat(frames[-length:], dim=1)


enhance = nn.Conv2d(3 * WINDOW, 3, 3, padding=1).cuda().eval()

with torch.no_grad():
    for index, window in enumerate(windows(camera(9), WINDOW)):
        result = enhance(window).clamp_(0, 1)
        print(index, tuple(result.shape))
