# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keys and values of a decoder grow by torch.cat, in lists, with no module in sight."""

import os
import sys

import torch

LAYERS, HEADS, WIDTH = 16, 8, 128
BATCH = 4 if os.environ.get("FIXED") else 8
steps = int(sys.argv[1])


def empty(tokens):
    return torch.empty(BATCH, HEADS, tokens, WIDTH, dtype=torch.bfloat16, device="cuda")


weights = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
keys = [empty(2048) for _ in range(LAYERS)]
values = [empty(2048) for _ in range(LAYERS)]


def decode(steps):
    for _ in range(steps):
        for layer in range(LAYERS):
            keys[layer] = torch.cat([keys[layer], empty(128)], 2)  # <- here
            values[layer] = torch.cat([values[layer], empty(128)], 2)  # <- here


decode(steps)
