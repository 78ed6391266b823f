# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small transformer that is trained on as many ranks as there are, sharded as the argument selects."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, LAYERS = 1024, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.first = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.second = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.second(torch.nn.functional.gelu(self.first(self.norm(x))))


how = sys.argv[1]
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
if how == "address":
    # As many scripts have it.
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29511"
if "bound" in sys.argv:
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
else:
    dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(*(Block() for _ in range(LAYERS))).cuda()
if how == "hsdp":
    mesh = init_device_mesh("cuda", (size // 4, 4), mesh_dim_names=("replicate", "shard"))
elif how == "ddp":
    mesh = None
else:
    mesh = init_device_mesh("cuda", (size,))
if mesh is None:
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local])
else:
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
parameters = list(model.parameters())
shards = [p.to_local() if hasattr(p, "to_local") else p for p in parameters]
print(f"shard {rank} {sum(shard.numel() for shard in shards)}\n", end="", flush=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    loss = model(torch.randn(8, 256, WIDTH, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if how == "objects":
    side = dist.new_group(backend="gloo")
    said = [None] * size
    dist.all_gather_object(said, {"rank": rank})
    print(f"gathered {rank} {[one['rank'] for one in said]}\n", end="", flush=True)
    told = [f"from {rank}"] if rank == 0 else [None]
    dist.broadcast_object_list(told, src=0)
    dist.barrier(group=side)
    dist.monitored_barrier(side)
    print(f"told {rank} {told}\n", end="", flush=True)
dist.barrier()
if "kept" not in sys.argv:
    dist.destroy_process_group()
