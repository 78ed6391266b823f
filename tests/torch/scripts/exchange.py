"""Every collective, operator and type between live ranks, against what follows from the ranks' numbers."""

import math
import os

import torch
import torch.distributed as dist

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
everyone = range(ranks)
after, before = (rank + 1) % ranks, (rank - 1) % ranks


def check(what, found, expected):
    if isinstance(found, torch.Tensor):
        found = found.tolist()
    assert found == expected, f"{what} on rank {rank}: {found}, not {expected}"


def mine(one, dtype=torch.float32):
    """Two numbers of a rank."""
    return torch.tensor([one + 1, 2 * one], dtype=dtype, device="cuda")


# Objects, also one beyond the size of a small copy.
found = [None] * ranks
dist.all_gather_object(found, {"rank": rank, "text": "x" * 100_000 * rank})
check("all_gather_object", [one["rank"] for one in found], list(everyone))
check("all_gather_object", [len(one["text"]) for one in found], [100_000 * one for one in everyone])
found = [("from", rank), rank] if rank == 0 else [None, None]
dist.broadcast_object_list(found, src=0)
check("broadcast_object_list", found, [("from", 0), 0])
found = [None] * ranks if rank == ranks - 1 else None
dist.gather_object(f"rank {rank}", found, dst=ranks - 1)
check("gather_object", found, [f"rank {one}" for one in everyone] if rank == ranks - 1 else None)
found = [None]
dist.scatter_object_list(found, [["for", one] for one in everyone] if rank == 0 else None, src=0)
check("scatter_object_list", found, [["for", rank]])
if rank == 0:
    dist.send_object_list([{"shape": (4, 8)}, "two"], dst=1)
elif rank == 1:
    found = [None, None]
    dist.recv_object_list(found, src=0)
    check("recv_object_list", found, [{"shape": (4, 8)}, "two"])

# Operators and types.
firsts, seconds = [one + 1 for one in everyone], [2 * one for one in everyone]
operators = {
    dist.ReduceOp.SUM: sum,
    dist.ReduceOp.PRODUCT: math.prod,
    dist.ReduceOp.MIN: min,
    dist.ReduceOp.MAX: max,
}
exact = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16]
for dtype in [*exact, torch.float32, torch.float64]:
    for operator, expected in operators.items():
        values = mine(rank, dtype)
        dist.all_reduce(values, operator)
        numbers = [expected(firsts), expected(seconds)]
        if operator == dist.ReduceOp.PRODUCT:
            # Rounded after each step, in the order of the ranks; integers wrap around.
            product = torch.ones(2, dtype=dtype)
            for one in everyone:
                product *= torch.tensor([one + 1, 2 * one], dtype=dtype)
            numbers = product.tolist()
        check(f"{operator} of {dtype}", values, numbers)
    values = mine(rank, dtype)
    dist.all_reduce(values, dist.ReduceOp.AVG)
    average = [sum(firsts) / ranks, sum(seconds) / ranks]
    if dtype.is_floating_point:
        assert torch.allclose(values.double().cpu(), torch.tensor(average).double(), rtol=2e-2), (dtype, values)
    else:
        check(f"average of {dtype}", values, [int(one) for one in average])
values = torch.tensor([rank == 0, False, True], device="cuda")
dist.all_reduce(values)
check("sum of bool", values, [True, False, True])
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    values = torch.tensor([1.0, 0.5]).to(dtype).cuda()
    try:
        dist.all_reduce(values)
    except (TypeError, RuntimeError) as error:
        print("not reduced:", dtype, str(error).splitlines()[0])
    else:
        found = values.cpu().float().tolist()
        check(f"sum of {dtype}", found, torch.tensor([ranks * 1.0, ranks * 0.5]).to(dtype).float().tolist())
    parts = [torch.empty(2, dtype=dtype, device="cuda") for _ in everyone]
    dist.all_gather(parts, torch.tensor([float(rank), -1.0]).to(dtype).cuda())
    check(f"all_gather of {dtype}", [part.cpu().float().tolist() for part in parts], [[float(one), -1] for one in everyone])
values = mine(rank)
dist.all_reduce(values, dist._make_nccl_premul_sum(2.0))
check("sum of twice the numbers", values, [2.0 * sum(firsts), 2.0 * sum(seconds)])

# Every collective.
for root in everyone:
    values = mine(rank, torch.int64)
    dist.broadcast(values, src=root)
    check("broadcast", values, [root + 1, 2 * root])
    values = mine(rank, torch.int64)
    dist.reduce(values, dst=root)
    if rank == root:
        check("reduce", values, [sum(firsts), sum(seconds)])
    parts = [torch.zeros(2, device="cuda") for _ in everyone] if rank == root else None
    dist.gather(mine(rank), parts, dst=root)
    if rank == root:
        check("gather", [part.tolist() for part in parts], [[one + 1, 2 * one] for one in everyone])
    values = torch.zeros(2, device="cuda")
    dist.scatter(values, [mine(one) for one in everyone] if rank == root else None, src=root)
    check("scatter", values, [rank + 1, 2 * rank])
parts = [torch.zeros(2, device="cuda") for _ in everyone]
dist.all_gather(parts, mine(rank))
check("all_gather", [part.tolist() for part in parts], [[one + 1, 2 * one] for one in everyone])
parts = [torch.zeros(1 + one, device="cuda") for one in everyone]
dist.all_gather(parts, torch.full((1 + rank,), float(rank), device="cuda"))
check("all_gather of different sizes", [part.tolist() for part in parts], [[one] * (1 + one) for one in everyone])
values = torch.zeros(2 * ranks, device="cuda")
dist.all_gather_into_tensor(values, mine(rank))
check("all_gather_into_tensor", values.reshape(-1, 2), [[one + 1, 2 * one] for one in everyone])
values = torch.zeros(2, device="cuda")
dist.reduce_scatter_tensor(values, torch.arange(2.0 * ranks, device="cuda") * (rank + 1))
check("reduce_scatter_tensor", values, [2 * rank * sum(firsts), (2 * rank + 1) * sum(firsts)])
dist.reduce_scatter(values, [torch.full((2,), float(one), device="cuda") for one in everyone])
check("reduce_scatter", values, [rank * ranks] * 2)
values = torch.zeros(ranks, dtype=torch.int32, device="cuda")
dist.all_to_all_single(values, torch.arange(ranks, dtype=torch.int32, device="cuda") + 100 * rank)
check("all_to_all_single", values, [100 * one + rank for one in everyone])
# Rank r sends r + 1 numbers to each.
values = torch.zeros(sum(firsts), device="cuda")
dist.all_to_all_single(values, torch.full(((rank + 1) * ranks,), float(rank), device="cuda"), firsts, [rank + 1] * ranks)
check("all_to_all_single of different sizes", values, [one for one in everyone for _ in range(one + 1)])
parts = [torch.zeros(1, device="cuda") for _ in everyone]
dist.all_to_all(parts, [torch.tensor([10.0 * rank + one], device="cuda") for one in everyone])
check("all_to_all", [part.item() for part in parts], [10 * one + rank for one in everyone])

# Messages, one by one and in a group.
values = torch.zeros(1, device="cuda")
if rank == 0:
    dist.send(torch.full((1,), 100.0, device="cuda"), dst=1)
elif rank == 1:
    dist.recv(values, src=0)
    check("recv", values, [100])
messages = [
    dist.P2POp(dist.isend, torch.full((3,), float(rank), device="cuda"), after),
    dist.P2POp(dist.irecv, torch.zeros(3, device="cuda"), before),
]
for work in dist.batch_isend_irecv(messages):
    work.wait()
check("batch_isend_irecv", messages[1].tensor, [before] * 3)
with dist._coalescing_manager(device=torch.device("cuda", rank)):
    values = [torch.full((2,), float(rank), device="cuda"), torch.ones(1, device="cuda")]
    for one in values:
        dist.all_reduce(one)
check("coalesced", [one.tolist() for one in values], [[sum(everyone)] * 2, [ranks]])

# Groups: of some ranks, and two whose collectives the ranks call in different order.
pair = dist.new_group([0, ranks - 1])
if rank in (0, ranks - 1):
    values = mine(rank)
    dist.all_reduce(values, group=pair)
    check("group", values, [ranks + 1, 2 * (ranks - 1)])
groups = [dist.new_group(), dist.new_group()]
values = [mine(rank), mine(rank)]
works = [None, None]
for one in (0, 1) if rank == 0 else (1, 0):
    works[one] = dist.all_reduce(values[one], group=groups[one], async_op=True)
for work in works:
    work.wait()
check("two groups", [one.tolist() for one in values], [[sum(firsts), sum(seconds)]] * 2)

# Values computed from what has arrived, before any rank waits, and what is written over it.
values = mine(rank)
work = dist.all_reduce(values, async_op=True)
work.wait()
doubled = values * 2
values.zero_()
check("computed", doubled, [2 * sum(firsts), 2 * sum(seconds)])
check("overwritten", values, [0, 0])
large = torch.arange(1 << 19, device="cuda")
dist.all_reduce(large, dist.ReduceOp.MAX)
check("4 MiB", large[-1].item(), (1 << 19) - 1)

bytes_of = [bytes(6 << 20) + b"end" if rank == 0 else None]
dist.broadcast_object_list(bytes_of, src=0)
check("an object of 6 MiB", (len(bytes_of[0]), bytes_of[0][-3:]), ((6 << 20) + 3, b"end"))

# Counts of elements follow unknown means, in one tensor.
normalized = torch.nn.SyncBatchNorm(4).cuda()(torch.randn(2 + rank, 4, 64, 64, device="cuda"))
check("synchronised", tuple(normalized.shape), (2 + rank, 4, 64, 64))

# Ranks that decide together go the same way.
rounds = 0
while True:
    rounds += 1
    done = torch.tensor([int(rounds == 3 + rank)], device="cuda")
    dist.all_reduce(done, dist.ReduceOp.MAX)
    if done.item():
        break
check("rounds", rounds, 3)
dist.barrier()

# Random values stay random, and values that are too large are unknown.
drawn = torch.rand(2, device="cuda")
dist.all_reduce(drawn)
drawn.tolist()  # drawn
beyond = torch.ones((1 << 20) + 1, device="cuda")
dist.all_reduce(beyond)
beyond[0].item()  # unknown
dist.destroy_process_group()
print(f"rank {rank} of {ranks} ok")
