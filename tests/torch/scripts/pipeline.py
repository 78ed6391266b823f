# SPDX-License-Identifier: MIT OR Apache-2.0
"""A pipeline of four stages that infers the shapes between them, each stage sharded over the other ranks."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, STAGES, WORDS = 512, 4, 8000

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=device)
mesh = init_device_mesh("cuda", (STAGES, dist.get_world_size() // STAGES), mesh_dim_names=("pp", "dp"))
number = mesh["pp"].get_local_rank()
with device:
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    if number == 0:
        layers.insert(0, torch.nn.Embedding(WORDS, WIDTH))
    if number == STAGES - 1:
        layers.append(torch.nn.Linear(WIDTH, WORDS))
    model = torch.nn.Sequential(*layers)
fully_shard(model, mesh=mesh["dp"])
stage = PipelineStage(model, number, STAGES, device, group=mesh["pp"].get_group())
schedule = Schedule1F1B(
    stage,
    n_microbatches=4,
    loss_fn=lambda out, goal: torch.nn.functional.cross_entropy(out.flatten(0, 1), goal.flatten()),
)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    words = torch.randint(WORDS, (8, 128), device=device)
    if number == 0:
        schedule.step(words)
    elif number == STAGES - 1:
        schedule.step(target=words)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
print("stage", number, "rank", dist.get_rank(), sum(p.to_local().numel() for p in model.parameters()), flush=True)
dist.destroy_process_group()
