# SPDX-License-Identifier: MIT OR Apache-2.0
"""What ranks tell each other: objects, operators, messages, and a loop that ends when any of them is done."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)


def tensor(value):
    return torch.tensor([value], device="cuda")


def reduced(value, operator):
    result = tensor(value)
    dist.all_reduce(result, operator)
    return result.item()


everything = [{"rank": one, "words": "x" * one * 100} for one in range(size)]
heard = [None] * size
dist.all_gather_object(heard, everything[rank])
assert heard == everything, heard
heard = ["from 0", rank] if rank == 0 else [None, None]
dist.broadcast_object_list(heard, src=0)
assert heard == ["from 0", 0], heard
heard = [None] * size if rank == 0 else None
dist.gather_object(everything[rank], heard, dst=0)
assert heard == (everything if rank == 0 else None), heard
heard = [None]
dist.scatter_object_list(heard, everything if rank == 0 else None, src=0)
assert heard == [everything[rank]], heard
if rank == 0:
    dist.send_object_list([{"shape": (4, 8)}], dst=1)
elif rank == 1:
    heard = [None]
    dist.recv_object_list(heard, src=0)
    assert heard == [{"shape": (4, 8)}], heard
dist.barrier()

assert reduced(rank + 1, dist.ReduceOp.SUM) == size * (size + 1) // 2
assert reduced(rank + 1, dist.ReduceOp.MAX) == size
assert reduced(rank + 1, dist.ReduceOp.MIN) == 1
assert reduced(float(rank + 1), dist.ReduceOp.AVG) == (size + 1) / 2
parts = [tensor(-1) for _ in range(size)]
dist.all_gather(parts, tensor(rank))
assert [part.item() for part in parts] == list(range(size))
told = tensor(41 + rank)
dist.broadcast(told, src=0)
assert told.item() == 41
if rank == 0:
    dist.send(tensor(100), dst=1)
elif rank == 1:
    message = tensor(0)
    dist.recv(message, src=0)
    assert message.item() == 100
side = dist.new_group(backend="gloo")
total = torch.tensor([float(rank)])
dist.all_reduce(total, group=side)
assert total.item() == size * (size - 1) / 2

rounds = 0
finished = tensor(0)
while not finished.item():
    rounds += 1
    finished = tensor(int(rounds == 3 + rank))
    dist.all_reduce(finished, dist.ReduceOp.MAX)
assert rounds == 3, rounds
print(f"done, rank {rank} of {size}\n", end="", flush=True)
dist.destroy_process_group()
