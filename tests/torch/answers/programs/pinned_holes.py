# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small block that stays in each segment: all holes together would serve the last request, none alone does."""

import torch


def buffer(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


stay, go = [], []
for _ in range(14):
    warm = buffer(500)
    del warm  # a segment of 500 MiB, cached
    stay.append(buffer(20))  # <- here
    go.append(buffer(480))
del go
prompt = buffer(2000)
