# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 1: out of memory though memory is free, in pieces between live blocks."""

import torch


def batch(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


warm_up = [batch(700) for _ in range(10)]
del warm_up
# Every segment of the first batches now gets something that stays beside something that goes.
stays, goes = [], []
for _ in range(10):
    stays.append(batch(100))
    goes.append(batch(600))
del goes
large = torch.empty(3000 << 20, dtype=torch.uint8, device="cuda")  # <- here
