# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs out of memory at the second block of an operator, whose first one is a new peak."""

import torch

x = torch.zeros(2_850_000_000, device="cuda")
held = [torch.zeros(1000, device="cuda") for _ in range(3000)]
try:
    torch.native_dropout(x, 0.5, True)
except torch.OutOfMemoryError:
    print("out of memory")
