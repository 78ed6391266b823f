# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory that all ranks of a group can write to."""

import os

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def say(what, value):
    os.write(1, f"{what} {dist.get_rank()} {value}\n".encode())


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.empty(1, device="cuda")
before = used()
buffer = symmetric_memory.empty(8 << 20, dtype=torch.bfloat16, device=torch.device("cuda", torch.cuda.current_device()))
say("made", used() - before)
handle = symmetric_memory.rendezvous(buffer, dist.group.WORLD)
say("met", used() - before)
handle.barrier()
buffer.fill_(dist.get_rank())
following = handle.get_buffer((dist.get_rank() + 1) % dist.get_world_size(), (1024,), torch.bfloat16)
following.fill_(1)
handle.barrier()
del following, handle, buffer
say("freed", used() - before)
dist.destroy_process_group()
