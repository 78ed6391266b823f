# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ranks that talk: what they exchange, and what is said of those that wait for ever."""

import socket
import time

import pytest
from conftest import PYTHON, SCRIPTS

LAUNCH = [PYTHON, str(SCRIPTS / "launch.py")]
SETUP = """
import os, sys, time, torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
"""


def line_of(text, script):
    """The number of the line that holds a text."""
    return next(number for number, line in enumerate(script.splitlines(), 1) if text in line)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_collective_operator_and_type(tonnage, ranks):
    script = SCRIPTS / "exchange.py"
    run = tonnage(None, options=["--gpus", str(ranks)], command=[*LAUNCH, str(ranks), str(script)])
    assert run.code == 0, run.err
    for rank in range(ranks):
        assert f"rank {rank} of {ranks} ok" in run.err
    lines = script.read_text()
    # Everything else that was read is known.
    unknown = run.verdict["unknown_values"]
    assert (unknown["decisions"], unknown["reads"], unknown["sizes"]) == (0, 2 * ranks, 0)
    assert unknown["first_read"]["line"] == line_of("# drawn", lines)


def test_the_rank_that_raises_is_named(tonnage, tmp_path):
    script = tmp_path / "raises.py"
    script.write_text(SETUP + "if rank == 1:\n    raise ValueError('no data')\n")
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    (raised,) = run.verdict["exceptions"]
    assert (raised["rank"], raised["message"]) == ("1", "no data")


def hang(tonnage, tmp_path, body, ranks=2):
    """The verdict of a script that hangs, with its text; it takes seconds."""
    script = tmp_path / "hang.py"
    script.write_text(SETUP + body)
    started = time.monotonic()
    command = [*LAUNCH, str(ranks), str(script)]
    run = tonnage(None, options=["--gpus", str(ranks)], command=command)
    assert time.monotonic() - started < 120
    assert run.code == 2, run.err
    return run.verdict["deadlocks"], script.read_text()


def test_ranks_that_wait_for_each_other_are_named(tonnage, tmp_path):
    deadlocks, script = hang(
        tonnage,
        tmp_path,
        "y = torch.zeros(1, device='cuda')\n"
        "dist.recv(y, src=1 - rank)  # both\n"
        "print(y.item())\n",
    )
    assert [(one["rank"], one["waits_for"], one["operation"], one["because"]) for one in deadlocks] == [
        (0, 1, "recv", "waits"),
        (1, 0, "recv", "waits"),
    ]
    assert {one["place"]["line"] for one in deadlocks} == {line_of("# both", script)}


def test_a_rank_that_does_not_come_is_named(tonnage, tmp_path):
    deadlocks, script = hang(
        tonnage,
        tmp_path,
        "if rank == 1:\n    os._exit(0)\n"
        "dist.all_reduce(x)  # alone\n"
        "torch.cuda.synchronize()\n",
    )
    (alone,) = deadlocks
    assert (alone["rank"], alone["waits_for"], alone["because"]) == (0, 1, "ended")
    # The first was that of all ranks.
    assert (alone["operation"], alone["number"], alone["ranks"]) == ("all_reduce", 2, 2)
    assert alone["place"]["line"] == line_of("# alone", script)


def test_ranks_that_call_different_things_are_named(tonnage, tmp_path):
    deadlocks, script = hang(
        tonnage,
        tmp_path,
        "if rank == 0:\n    dist.all_reduce(x)  # first\n"
        "else:\n    dist.broadcast(x, src=0)  # second\n"
        "print(x.sum().item())\n",
    )
    differs = [one for one in deadlocks if one["because"] == "differs"]
    by_rank = {one["rank"]: one for one in differs}
    assert by_rank[0]["instead"]["operation"] == "broadcast of 4 elements from rank 0"
    assert by_rank[0]["instead"]["place"]["line"] == line_of("# second", script)
    assert by_rank[0]["place"]["line"] == line_of("# first", script)


def test_what_the_allocator_does_does_not_depend_on_who_is_faster(tonnage, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        SETUP + "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())\n"
        "for step in range(2):\n"
        "    if str(rank) in sys.argv[1:]:\n        time.sleep(1)\n"
        "    loss = model(torch.ones(8, 256, device='cuda')).sum()\n"
        "    loss.backward()\n"
        "    dist.all_reduce(x)\n    x.add_(1)\n"
        # In one piece: both ranks print to one pipe.
        "sys.stdout.write(f'sum {x[0].item()}\\n')\n"
    )
    rows = []
    for slow in ("0", "1"):
        run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script), slow])
        assert run.code == 0, run.err
        # 2, then twice the double and one more.
        assert run.err.count("sum 11.0") == 2
        events = run.table().select(["device", "kind", "size"]).to_pylist()
        rows.append([[(row["kind"], row["size"]) for row in events if row["device"] == device] for device in (0, 1)])
    assert rows[0] == rows[1]
    assert len(rows[0][0]) > 20


def test_nccl_by_its_path(tonnage, tmp_path):
    script = tmp_path / "by_path.py"
    script.write_text(
        "import ctypes, glob, os, torch\n"
        "x = torch.ones(4, device='cuda')\n"
        "folder = os.path.join(os.path.dirname(torch.__file__), '..', 'nvidia')\n"
        "paths = glob.glob(os.path.join(folder, '**', 'libnccl.so.2'), recursive=True)\n"
        "class Id(ctypes.Structure):\n    _fields_ = [('bytes', ctypes.c_byte * 128)]\n"
        "for path in ['libnccl.so.2', *paths]:\n"
        "    nccl = ctypes.CDLL(path)\n"
        "    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]\n"
        "    id, comm = Id(), ctypes.c_void_p()\n"
        "    assert nccl.ncclGetUniqueId(ctypes.byref(id)) == 0\n"
        "    assert nccl.ncclCommInitRank(ctypes.byref(comm), 1, id, 0) == 0, path\n"
        "print('opened', len(paths))\n"
    )
    run = tonnage(None, command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "opened 1" in run.err


# A channel of NCCL between two GPUs: 10 MiB where it receives and 2 MiB where it sends, as its log has them.
CHANNEL = 12 << 20


@pytest.mark.parametrize("most", [None, 2])
def test_the_buffers_of_nccl_grow_with_its_communicators(tonnage, tmp_path, most):
    script = tmp_path / "groups.py"
    script.write_text(
        SETUP
        + "for _ in range(9):\n"
        + "    dist.all_reduce(x, group=dist.new_group())\n"
        + "dist.new_group()  # not used\n"
        + "x.sum().item()\n"
    )
    command = [*LAUNCH, "4", str(script)]
    if most:
        command = ["env", f"NCCL_MAX_NCHANNELS={most}", *command]
    run = tonnage(None, options=["--gpu", "h100-80gb", "--gpus", "4"], command=command)
    assert run.code == 0, run.err
    (nccl,) = [part for part in run.verdict["margin"]["uncounted"] if "NCCL" in part["what"]]
    channels = most or 24
    assert nccl["what"] == "buffers of NCCL, 10 communicators"
    assert nccl["low"] == 10 * channels * CHANNEL
    # Rings, trees, and the reductions of the switch for four GPUs; or what was seen.
    computed = 10 * (2 * channels * CHANNEL + (4 * 32 << 20))
    assert nccl["high"] == max(computed, 1843 << 20)
    assert nccl["known"] == ("computed" if computed > 1843 << 20 else "computed and seen")


STARTED = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size)
    x = torch.full((4,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    model = torch.nn.Linear(1024, 1024 * (rank + 1)).cuda()  # weights
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    sys.stdout.write(f"rank {rank}: {x[0].item()} {objects}\\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(train, (2,), 2, start_method=sys.argv[1])
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_the_script_starts_itself(tonnage, tmp_path, method):
    script = tmp_path / "started.py"
    script.write_text(STARTED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = tonnage(None, options=["--gpus", "2"], command=[PYTHON, str(script), method, str(port)])
    assert run.code == 0, run.err
    for rank in (0, 1):
        assert f"rank {rank}: 3.0 [{{'rank': 0}}, {{'rank': 1}}]" in run.err
    devices = {one["rank"]: one for one in run.verdict["devices"]}
    assert {rank: one["device"] for rank, one in devices.items()} == {"0": 0, "1": 1}
    for one in devices.values():
        assert one["reserved_known"]
        lines = [holder["place"]["line"] for holder in one["holders"] if holder["place"]]
        assert line_of("# weights", STARTED) in lines, one["holders"]


def test_what_a_dtensor_moves_between_dimensions_is_known(tonnage, tmp_path):
    script = tmp_path / "dtensor.py"
    script.write_text(
        SETUP
        + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
mesh = init_device_mesh("cuda", (2,))
whole = torch.arange(64.0).reshape(8, 8)
rows = distribute_tensor(whole, mesh, [Shard(0)])
columns = rows.redistribute(mesh, [Shard(1)])
assert torch.equal(columns.to_local().cpu(), whole.chunk(2, 1)[rank])
assert torch.equal(columns.full_tensor().cpu(), whole)
"""
    )
    command = [*LAUNCH, "2", str(script)]
    known = tonnage(None, options=["--gpus", "2"], command=command)
    assert known.code == 0, known.err
    assert known.verdict["unknown_values"] is None
