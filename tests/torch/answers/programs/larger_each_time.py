# SPDX-License-Identifier: MIT OR Apache-2.0
"""A buffer is replaced by a larger one; the old is still there while the new one is made."""

import torch

buffer = None
for size in range(1, 80):
    buffer = torch.empty(size * 64 << 20, dtype=torch.uint8, device="cuda")  # <- here
