# SPDX-License-Identifier: MIT OR Apache-2.0
"""A transformer on several GPUs, by the ways that torch itself has."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, VOCABULARY, LENGTH = 512, 4, 8, 4096, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """All layers, or those of one stage of a pipeline."""

    def __init__(self, stage=0, stages=1):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if stage == 0 else None
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS // stages))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if stage == stages - 1 else None

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batch():
    tokens = torch.randint(VOCABULARY, (4, LENGTH + 1), device="cuda")
    return tokens[:, :-1], tokens[:, 1:]


def bytes_of(parameters):
    local = (one.to_local() if hasattr(one, "to_local") else one for one in parameters)
    return sum(one.numel() * one.element_size() for one in local)


def train(model, optimizer, steps=2):
    for _ in range(steps):
        inputs, targets = batch()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp(rank, size):
    model = nn.parallel.DistributedDataParallel(Model().cuda(), gradient_as_bucket_view=True)
    return model, torch.optim.AdamW(model.parameters())


def fsdp1(rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    precision = MixedPrecision(torch.bfloat16, torch.bfloat16)
    model = FullyShardedDataParallel(
        Model().cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision, use_orig_params=True
    )
    return model, torch.optim.AdamW(model.parameters())


def fsdp2(rank, size, mesh=None):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} | ({"mesh": mesh} if mesh else {})
    model = Model().cuda()
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    return model, torch.optim.AdamW(model.parameters(), fused=True)


def hsdp(rank, size):
    mesh = dist.init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    return fsdp2(rank, size, mesh)


def tp(rank, size, fsdp=False):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ways = 2 if fsdp else size
    mesh = dist.init_device_mesh("cuda", (size // ways, ways), mesh_dim_names=("dp", "tp"))
    model = Model().cuda()
    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")} | {
        name: RowwiseParallel() for name in ("o", "down")
    }
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)
        if fsdp:
            fully_shard(block, mesh=mesh["dp"])
    if fsdp:
        fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), foreach=False)


def tp_fsdp(rank, size):
    return tp(rank, size, fsdp=True)


def pipeline(rank, size):
    """Shapes between the stages are inferred: each sends them to the next."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    device = torch.device("cuda", torch.cuda.current_device())
    model = Model(rank, size).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    stage = PipelineStage(model, rank, size, device)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    for _ in range(2):
        inputs, targets = batch()
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        optimizer.step()
        optimizer.zero_grad()


def context(rank, size):
    """A sequence of which each rank has a part."""
    from torch.distributed.tensor.experimental import context_parallel

    mesh = dist.init_device_mesh("cuda", (size,), mesh_dim_names=("cp",))
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        inputs, targets = (one.contiguous() for one in batch())
        with context_parallel(mesh, buffers=[inputs, targets], buffer_seq_dims=[1, 1]):
            assert inputs.shape[1] == LENGTH // size
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model(inputs), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Experts(nn.Module):
    """One expert on each rank; tokens go where their router sends them, and back."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.router = nn.Linear(WIDTH, size, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        shape = x.shape
        x = x.flatten(0, -2)
        weight, expert = self.router(x).softmax(-1).max(-1)
        order = expert.argsort()
        sent = expert.bincount(minlength=self.size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sent, received = sent.tolist(), received.tolist()
        group = dist.group.WORLD
        there = all_to_all_single_autograd(x[order], received, sent, group)
        back = all_to_all_single_autograd(self.down(functional.gelu(self.up(there))), sent, received, group)
        y = torch.zeros_like(x).index_copy(0, order, back)
        return (y * weight[:, None]).reshape(shape)


def experts(rank, size):
    model = Experts(size).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, LENGTH, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def checkpoint(rank, size):
    """Saved by all ranks together, and loaded again."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = fsdp2(rank, size)
    train(model, optimizer)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, src=0)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return model, optimizer


def run(how, rank, size):
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group("nccl", rank=rank, world_size=size)
    made = globals()[how](rank, size)
    held = ""
    if made:
        held = f", {bytes_of(made[0].parameters())} bytes of weights"
        train(*made)
    peak = torch.cuda.max_memory_allocated()
    # In one piece: all ranks print to one pipe.
    print(f"done, rank {rank} of {size}{held}, {peak} bytes at most\n", end="", flush=True)
    dist.destroy_process_group()


def start(rank, how, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    run(how, rank, size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("--start", choices=["spawn", "fork"], help="how ranks are started, if nobody else does")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.start:
        mp.start_processes(start, (arguments.how, arguments.ranks), arguments.ranks, start_method=arguments.start)
    else:
        run(arguments.how, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
