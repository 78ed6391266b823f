# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ranks that communicate: their exchanges, and the report on ranks that wait forever."""

import json
import socket
import subprocess
import time

import pytest
from conftest import PYTHON, SCRIPTS, TONNAGE

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
    assert (raised["rank"], raised["message"]) == (1, "no data")


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
        "y = torch.zeros(1, device='cuda')\ndist.recv(y, src=1 - rank)  # both\nprint(y.item())\n",
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
        "if rank == 1:\n    os._exit(0)\ndist.all_reduce(x)  # alone\ntorch.cuda.synchronize()\n",
    )
    (alone,) = deadlocks
    assert (alone["rank"], alone["waits_for"], alone["because"]) == (0, 1, "ended")
    # The first was that of all ranks.
    assert (alone["operation"], alone["number"], alone["ranks"]) == ("all_reduce", 2, 2)
    assert alone["place"]["line"] == line_of("# alone", script)


def test_a_hang_decides_though_its_launcher_returns_0(tonnage, tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(SETUP + "if rank == 0:\n    dist.all_reduce(x)  # alone\n    torch.cuda.synchronize()\n")
    launcher = tmp_path / "launch.sh"
    launcher.write_text('"$@"\nexit 0\n')
    run = tonnage(None, options=["--gpus", "2"], command=["sh", str(launcher), *LAUNCH, "2", str(script)])
    assert run.verdict["ending"] == "exit 0"
    assert (run.code, run.verdict["outcome"]) == (2, "failed")
    (waits,) = run.verdict["deadlocks"]
    assert (waits["rank"], waits["place"]["line"]) == (0, line_of("# alone", script.read_text()))
    (failed,) = run.verdict["failed_processes"]
    assert (failed["rank"], failed["ending"]) == (0, "exit 2")


def test_a_rank_with_fewer_batches_is_named(tonnage, tmp_path):
    """The gradients of the last batch are summed with those of a rank that has no such batch."""
    deadlocks, script = hang(
        tonnage,
        tmp_path,
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())\n"
        "for _ in range(3 + rank):\n"
        "    loss = model(torch.ones(8, 256, device='cuda')).sum()\n"
        "    loss.backward()  # sums\n"
        "    print('batch', loss.item(), flush=True)\n"
        # Nothing waits for the GPU behind the loop.
        "os._exit(0)\n",
    )
    (waiting,) = deadlocks
    assert (waiting["rank"], waiting["waits_for"], waiting["operation"]) == (1, 0, "all_reduce")
    assert waiting["place"]["line"] == line_of("# sums", script)
    assert waiting["because"] == "ended"


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


def test_ranks_that_wait_because_of_the_order_of_their_calls_are_named(tonnage, tmp_path):
    """Each has called all that the others wait for; their GPUs never come to it."""
    deadlocks, script = hang(
        tonnage,
        tmp_path,
        "y = torch.zeros(1, device='cuda')\n"
        "dist.recv(y, src=(rank - 1) % 3)  # first\n"
        "dist.send(x[:1], dst=(rank + 1) % 3)  # second\n"
        "torch.cuda.synchronize()\n",
        ranks=3,
    )
    assert [(one["rank"], one["waits_for"], one["operation"], one["because"]) for one in deadlocks] == [
        (0, 2, "recv", "behind"),
        (1, 0, "recv", "behind"),
        (2, 1, "recv", "behind"),
    ]
    first, second = (line_of(f"# {which}", script) for which in ("first", "second"))
    for one in deadlocks:
        places = [one["place"], one["called"]["place"], one["behind"]["place"]]
        assert [place["line"] for place in places] == [first, second, first]


def test_collectives_of_two_groups_in_different_orders_are_named(tonnage, tmp_path):
    deadlocks, script = hang(
        tonnage,
        tmp_path,
        "groups = [dist.new_group([0, 1]) for _ in range(2)]\n"
        "for group in groups if rank == 0 else groups[::-1]:\n"
        "    dist.all_reduce(x, group=group)  # either\n"
        "print(x.sum().item())\n",
    )
    assert {(one["rank"], one["operation"], one["because"]) for one in deadlocks} == {
        (0, "all_reduce", "behind"),
        (1, "all_reduce", "behind"),
    }
    assert len({one["communicator"] for one in deadlocks}) == 2
    assert {one["behind"]["place"]["line"] for one in deadlocks} == {line_of("# either", script)}


def test_messages_that_go_both_ways_at_once_do_not_wait(tonnage, tmp_path):
    script = tmp_path / "ring.py"
    script.write_text(
        SETUP + "y = torch.zeros(1, device='cuda')\n"
        "for _ in range(3):\n"
        "    both = [dist.P2POp(dist.irecv, y, (rank - 1) % 3), dist.P2POp(dist.isend, x[:1], (rank + 1) % 3)]\n"
        "    for one in dist.batch_isend_irecv(both):\n        one.wait()\n"
        # A pipeline: only the first sends before it receives.
        "if rank > 0:\n    dist.recv(y, src=rank - 1)\n"
        "dist.send(x[:1], dst=(rank + 1) % 3)\n"
        "if rank == 0:\n    dist.recv(y, src=2)\n"
        "torch.cuda.synchronize()\n"
    )
    run = tonnage(None, options=["--gpus", "3"], command=[*LAUNCH, "3", str(script)])
    assert run.code == 0, run.err


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
    assert {rank: one["device"] for rank, one in devices.items()} == {0: 0, 1: 1}
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


def test_processes_that_share_a_gpu_are_counted_together(tonnage, tmp_path):
    """The fullest GPU is the one that two processes share, not that of the largest process."""
    script = tmp_path / "share.py"
    script.write_text(
        """
import os, sys, time, subprocess, torch
if len(sys.argv) == 1:
    gpus = ((0, 12), (1, 10), (1, 9))
    start = lambda gpu, gib: subprocess.Popen(
        [sys.executable, __file__, str(gib)], env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)})
    sys.exit(max(process.wait() for process in [start(*one) for one in gpus]))
blocks = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(int(sys.argv[1]))]
while torch.cuda.mem_get_info()[0] > 10 << 30 and len(blocks) < 12:
    time.sleep(0.1)
time.sleep(1)
"""
    )
    run = tonnage(script, options=["--gpu", "rtx4090", "--gpus", "2"])
    assert run.code == 0, run.err
    (shared,) = (total for total in run.verdict["devices_total"] if total["device"] == 1)
    context = run.verdict["context"]["bytes"]
    assert (shared["processes"], shared["most_in_use"]) == (2, (19 << 30) + 2 * context)
    explained = subprocess.run([TONNAGE, "explain", str(run.recording)], capture_output=True, text=True)
    assert "GPU 1, which 2 processes use, with 19.75 GiB in use together at most" in explained.stdout


def test_a_thread_that_takes_the_first_gpu_brings_no_buffers_of_nccl_there(tonnage, tmp_path):
    """A thread that does not select a device is on GPU 0: a context of each rank is there, nothing else."""
    script = tmp_path / "thread.py"
    script.write_text(
        SETUP
        + "import threading\nthread = threading.Thread(target=torch.cuda.synchronize)\nthread.start()\nthread.join()\n"
    )
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    assert run.code == 0, run.err
    parts = {part["what"].split(",")[0]: part for part in run.verdict["margin"]["uncounted"]}
    assert run.verdict["devices_total"][0]["processes"] == 2
    assert parts["kernel images and library handles"]["high"] == 350 << 20
    assert parts["buffers of NCCL"]["high"] < 2 << 30


def test_the_rank_that_raises_before_it_uses_its_gpu_is_named(tonnage, tmp_path):
    script = tmp_path / "raises.py"
    lines = [
        *SETUP.splitlines()[:4],
        'dist.init_process_group("nccl")',
        "if rank == 1:",
        "    raise ValueError('no data')",
    ]
    script.write_text("\n".join(lines))
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    (raised,) = run.verdict["exceptions"]
    assert (raised["rank"], raised["message"]) == (1, "no data")
    explained = subprocess.run([TONNAGE, "explain", str(run.recording)], capture_output=True, text=True)
    assert explained.returncode == 2
    assert "the job failed before it allocated any: ValueError on rank 1 at" in explained.stderr


def explain(recording, *options):
    command = [TONNAGE, "explain", str(recording), "--json", *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def test_buckets_of_ddp_are_no_activations(tonnage, tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(
        SETUP
        + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4096, 4096, bias=False).cuda())
for _ in range(3):
    model(torch.ones(1, 4096, device="cuda")).mean().backward()
"""
    )
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    assert run.code == 0, run.err
    held = {part["category"]: part["bytes"] for part in explain(run.recording)["categories"]}
    weights = 4096 * 4096 * 4
    assert held["weights"] == weights
    # The gradients that the backward pass leaves, and the buckets in which the ranks sum it up.
    assert held["gradients"] == 2 * weights
    assert held.get("activations", 0) < 1 << 20


def test_gradients_that_fsdp_has_not_summed_yet_are_gradients(tonnage, tmp_path):
    """Without a sum after each micro-batch, each rank has the gradients of whole parameters."""
    script = tmp_path / "accumulates.py"
    script.write_text(
        SETUP
        + """
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
model.set_requires_gradient_sync(False)
for _ in range(3):
    model(torch.ones(1, 2048, device="cuda")).sum().backward()
extra = torch.empty(1 << 28, device="cuda")  # the peak
"""
    )
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    assert run.code == 0, run.err
    held = {part["category"]: part["bytes"] for part in explain(run.recording)["categories"]}
    weights = 4 * 2048 * 2048 * 4
    assert held["weights"] == weights // 2
    assert held["gradients"] == weights


def test_a_script_prints_no_more_warnings_than_elsewhere(tonnage, tmp_path):
    """Between the passes of FSDP parameters are views, which have no gradients; torch warns of queries for them."""
    script = tmp_path / "views.py"
    script.write_text(
        SETUP
        + """
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(2)])
strategy = ShardingStrategy.SHARD_GRAD_OP
model = FullyShardedDataParallel(model, device_id=rank, sharding_strategy=strategy, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(1, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    assert run.code == 0, run.err
    assert "not a leaf" not in run.err


PIPELINE = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble
VOCABULARY, WIDTH, LAYERS = 32000, 512, 8
class Part(torch.nn.Module):
    def __init__(self, stage, stages):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH) if stage == 0 else None
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY) if stage == stages - 1 else None
    def forward(self, x):
        x = x if self.tokens is None else self.tokens(x)
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x if self.head is None else self.head(x)
device = torch.device("cuda", rank)
def loss(output, target):
    return torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
def stages(*numbers, of):
    return [PipelineStage(Part(number, of).to(device), number, of, device) for number in numbers]
def train(schedule, last, **options):
    for _ in range(2):
        batch = torch.ones(16, 128, dtype=torch.int64, device=device)
        schedule.step(*[batch] * (rank == 0), **(dict(target=batch, losses=[]) if last else {}), **options)
"""


def test_outputs_that_a_pipeline_keeps_are_found_and_can_be_left_out(tonnage, tmp_path):
    script = tmp_path / "pipeline.py"
    call = "train(Schedule1F1B(*stages(rank, of=2), 8, loss_fn=loss), rank == 1{})\n"
    script.write_text(SETUP + PIPELINE + call.format(""))
    command = [*LAUNCH, "2", str(script)]
    run = tonnage(None, options=["--gpus", "2"], command=command)
    assert run.code == 0, run.err
    answer = explain(run.recording)
    assert answer["rank"] == 1
    logits = 16 * 128 * 32000 * 4
    first = answer["findings"][0]
    assert first["code"] == "TN218"
    assert first["bytes"] == pytest.approx(2 * logits, rel=0.01)
    (fix,) = (fix for fix in answer["fixes"] if fix["code"] == "TN218")
    script.write_text(SETUP + PIPELINE + call.format(", return_outputs=False"))
    without = tonnage(None, options=["--gpus", "2"], command=command)
    assert without.code == 0, without.err
    (last,) = (device for device in without.verdict["devices"] if device["rank"] == 1)
    assert last["peak_allocated"] == pytest.approx(fix["peak_after"], rel=0.01)


def test_micro_batches_in_flight_are_no_graphs_that_someone_forgot(tonnage, tmp_path):
    script = tmp_path / "bubble.py"
    script.write_text(
        SETUP
        + PIPELINE
        + "schedule = ScheduleInterleavedZeroBubble(stages(rank, rank + 2, of=4), 8, loss_fn=loss)\n"
        + "train(schedule, rank == 1, return_outputs=False)\n"
    )
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    assert run.code == 0, run.err
    for rank in "01":
        found = [finding["code"] for finding in explain(run.recording, "--rank", rank)["findings"]]
        assert "TN211" not in found


def test_large_objects_arrive(tonnage, tmp_path):
    script = tmp_path / "objects.py"
    script.write_text(
        SETUP
        + """
sent = bytes(range(256)) * (160 << 10)
told = [{"vocabulary": sent} if rank == 0 else None]
dist.broadcast_object_list(told, 0)
assert told[0]["vocabulary"] == sent
gathered = [None] * 2 if rank == 0 else None
dist.gather_object((rank, sent), gathered, 0)
assert rank or gathered == [(0, sent), (1, sent)]
"""
    )
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    assert run.code == 0, run.err


def test_a_barrier_holds_the_host(tonnage, tmp_path):
    """One rank prepares a file, the others read it after a barrier."""
    script = tmp_path / "barrier.py"
    script.write_text(
        """
import os, time, torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
for name in ("first", "second"):
    if rank == 0:
        time.sleep(3)
        open(name, "w").close()
    dist.barrier()
    assert os.path.exists(name)
"""
    )
    run = tonnage(None, options=["--gpus", "2"], command=[*LAUNCH, "2", str(script)])
    assert run.code == 0, run.err


def test_a_checkpoint_that_every_rank_reads_to_the_first_gpu(tonnage, tmp_path):
    """A file records from which device its tensors came: `set_device` does not help, `map_location` does."""
    script = tmp_path / "read.py"
    read = "held = torch.load('weights.pt'{})\n"
    before = SETUP + "if rank == 0:\n    torch.save(torch.ones(1 << 26, device='cuda'), 'weights.pt')\ndist.barrier()\n"
    after = "for _ in range(3):\n    grown = torch.ones(1 << 28, device='cuda')\n    dist.barrier()\n"
    script.write_text(before + read.format("") + after)
    command = [*LAUNCH, "2", str(script)]
    run = tonnage(None, options=["--gpus", "2", "--capacity", "6GiB"], command=command)
    assert run.code == 0, run.err
    # The buffers of NCCL are on a rank's own device, and not where it read a file to.
    (nccl,) = (part for part in run.verdict["margin"]["uncounted"] if "NCCL" in part["what"])
    assert nccl["high"] < 2 << 30
    (fix,) = (fix for fix in explain(run.recording)["fixes"] if fix["code"] == "TN105")
    assert "map_location" in fix["advice"]
    script.write_text(before + read.format(", map_location=f'cuda:{rank}'") + after)
    apart = tonnage(None, options=["--gpus", "2", "--capacity", "6GiB"], command=command)
    assert apart.code == 0, apart.err
    assert apart.verdict["devices_total"][0]["processes"] == 1
    (first,) = (device for device in apart.verdict["devices"] if device["device"] == 0)
    assert first["peak_used"] == fix["peak_after"]
