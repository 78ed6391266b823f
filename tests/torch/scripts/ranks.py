"""Each rank takes the device of its local rank and allocates one GiB more than the rank before."""

import os

import torch

rank = int(os.environ.get("LOCAL_RANK", "0"))
torch.cuda.set_device(rank)
blocks = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(rank + 1)]
assert all(block.get_device() == rank for block in blocks)
free, total = torch.cuda.mem_get_info()
print(f"rank {rank} of {torch.cuda.device_count()} devices, {torch.cuda.memory_allocated()} bytes")
