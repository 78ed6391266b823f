# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a side stream freed is given back for the main stream's requests; it fits, with nearly everything reserved."""

import torch

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    prefetched = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
weights = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
del prefetched
batches = [torch.empty(200 << 20, dtype=torch.uint8, device="cuda") for _ in range(26)]
