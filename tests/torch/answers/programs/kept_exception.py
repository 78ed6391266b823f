# SPDX-License-Identifier: MIT OR Apache-2.0
"""A failed attempt is remembered: its traceback keeps the frame, and the frame keeps the tensors."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)])


def attempt(size):
    activations = model(torch.randn(size, 2048, device="cuda"))  # <- here
    if size > 20000:
        raise ValueError(f"batch of {size} is not a power of two")
    return activations.mean()


failures = []
for size in (24000, 16384):
    try:
        attempt(size).backward()
    except ValueError as error:
        failures.append(str(error) if os.environ.get("FIXED") else error)  # <- here
