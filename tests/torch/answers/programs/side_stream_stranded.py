# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small block stays in each segment of a side stream: the rest of them can serve no other stream."""

import torch

side = torch.cuda.Stream()
stay, go = [], []
with torch.cuda.stream(side):
    for _ in range(20):
        warm = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        del warm
        stay.append(torch.empty(12 << 20, dtype=torch.uint8, device="cuda"))  # <- here
        go.append(torch.empty(244 << 20, dtype=torch.uint8, device="cuda"))
del go
batches = [torch.empty(200 << 20, dtype=torch.uint8, device="cuda") for _ in range(24)]
