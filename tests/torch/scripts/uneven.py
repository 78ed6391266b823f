# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rank r sends (r + 1) * 1000 rows to each rank, so the rows that a rank receives depend on the other ranks."""

import os
import sys

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
sent = torch.full((size,), (rank + 1) * 1000, device="cuda")
if "own" in sys.argv:
    print("rows", int(sent.sum()), file=sys.stderr)
else:
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    rows = torch.empty(int(received.sum()), 1024, device="cuda")
    print("rows", rows.shape[0], file=sys.stderr)
dist.destroy_process_group()
