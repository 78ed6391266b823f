# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a model of the size of Llama 3 70B on as many GPUs as there are, in one of three ways.

tonnage run --gpu h100 --world-size 512 -- python llama70b.py fsdp
tonnage run --gpu h100 --world-size 512 -- python llama70b.py hsdp
tonnage run --gpu h100 --world-size 512 --ranks auto -- python llama70b.py pp-dp-tp
"""

import os
import sys

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN, HEADS, KV_HEADS, LAYERS, WORDS, LENGTH = 8192, 28672, 64, 8, 80, 128256, 4096
HEAD = WIDTH // HEADS
STAGES, TENSOR_PARALLEL, MICRO_BATCHES = 4, 8, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.value = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = (part(x).view(batch, length, -1, HEAD).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.attention = Attention()
        self.feed_forward = FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


class Llama(nn.Module):
    """All of the model, or a stage of it."""

    def __init__(self, layers, is_first=True, is_last=True):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH) if is_first else nn.Identity()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)) if is_last else nn.Identity()

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


def loss_of(logits, words):
    return F.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


how = sys.argv[1]
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
distributed.init_process_group("nccl", device_id=device)
size = distributed.get_world_size()
stage = 0
if how == "fsdp":
    shards = init_device_mesh("cuda", (size,))
elif how == "hsdp":
    shards = init_device_mesh("cuda", (size // 64, 64), mesh_dim_names=("replicate", "shard"))
else:
    shape = (STAGES, size // (STAGES * TENSOR_PARALLEL), TENSOR_PARALLEL)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pp", "dp", "tp"))
    shards, stage = mesh["dp"], mesh["pp"].get_local_rank()
is_pipeline = how == "pp-dp-tp"
with torch.device("meta"):
    if is_pipeline:
        model = Llama(LAYERS // STAGES, stage == 0, stage == STAGES - 1)
    else:
        model = Llama(LAYERS)
if is_pipeline:
    by_column = ["attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up"]
    by_row = ["attention.out", "feed_forward.down"]
    plan = {**{name: ColwiseParallel() for name in by_column}, **{name: RowwiseParallel() for name in by_row}}
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], plan)
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mesh=shards, mp_policy=precision)
fully_shard(model, mesh=shards, mp_policy=precision)
model.to_empty(device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
words = torch.randint(WORDS, (MICRO_BATCHES if is_pipeline else 1, LENGTH), device=device)
if is_pipeline:
    part = PipelineStage(model, stage, STAGES, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(part, MICRO_BATCHES, loss_fn=loss_of)
for _ in range(2):
    if not is_pipeline:
        loss_of(model(words), words).backward()
    elif stage == 0:
        schedule.step(words)
    elif stage == STAGES - 1:
        schedule.step(target=words)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
local = sum(parameter.to_local().numel() for parameter in model.parameters())
most = torch.cuda.max_memory_allocated()
print(f"rank {distributed.get_rank()}: {local:,} parameters of its own, at most {most:,} B")
distributed.destroy_process_group()
