# SPDX-License-Identifier: MIT OR Apache-2.0
"""FSDP2 and its mixed precision in one process, as a script made for many GPUs is tried on one."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599", "RANK": "0", "WORLD_SIZE": "1"})
dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = torch.nn.Sequential(
    *[torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(6)]
).cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    model(torch.randn(8, 256, 1024, device="cuda", dtype=torch.bfloat16)).float().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
