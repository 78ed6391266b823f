"""Allocates and frees forever, and prints its progress; the test kills it."""

import torch

kept = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
round_number = 0
while True:
    for size in range(1, 65):
        block = torch.empty(size << 20, dtype=torch.uint8, device="cuda")
        del block
    round_number += 1
    print(round_number, flush=True)
