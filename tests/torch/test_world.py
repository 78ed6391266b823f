# SPDX-License-Identifier: MIT OR Apache-2.0
"""Some ranks of a job of many: `--world-size` and `--ranks`."""

import re
from pathlib import Path

import pytest
from conftest import PYTHON, SCRIPTS

TORCHRUN = [str(Path(PYTHON).parent / "torchrun"), "--nproc-per-node"]
WIDTH, LAYERS = 1024, 4
PARAMETERS = [[WIDTH], [WIDTH], [4 * WIDTH, WIDTH], [4 * WIDTH], [WIDTH, 4 * WIDTH], [WIDTH]]


def world(size, ranks):
    return ["--world-size", str(size), "--ranks", ranks]


def shard_of(size, rank):
    """Elements of a rank: each parameter is cut along its first dimension into as equal pieces as there are ranks."""
    total = 0
    for shape in PARAMETERS:
        piece = -(-shape[0] // size)
        rows = min(piece, max(0, shape[0] - piece * rank))
        total += rows * (shape[1] if len(shape) > 1 else 1)
    return LAYERS * total


def test_two_ranks_of_512(tonnage):
    run = tonnage("world.py", "fsdp", options=world(512, "0,511"))
    assert run.code == 0, run.err
    printed = {int(rank): int(size) for rank, size in re.findall(r"shard (\d+) (\d+)", run.err)}
    assert printed == {rank: shard_of(512, rank) for rank in (0, 511)}
    verdict = run.verdict
    assert verdict["ranks_run"] == {"world_size": 512, "ranks": [0, 511], "differing": []}
    # Rank 511 is the eighth of the 64th machine, which is the second here.
    assert {device["rank"]: device["device"] for device in verdict["devices"]} == {0: 0, 511: 15}
    # The script reads nothing that the other ranks send.
    assert not any("ranks that were not run" in sentence for sentence in verdict["unknown"])


def test_a_size_from_an_absent_rank_is_assumed(tonnage):
    command = [*TORCHRUN, "4", str(SCRIPTS / "uneven.py")]
    run = tonnage("", options=world(4, "0"), command=command)
    assert run.code == 0, run.err
    assert "rows 4000" in run.err, "four times its own"
    values = run.verdict["unknown_values"]
    assert values["sizes_absent"] == values["sizes"] > 0
    assert values["first_size"]["file"].endswith("uneven.py")
    assert any("3 ranks that were not run" in sentence for sentence in run.verdict["unknown"])
    # A job that reads nothing of other ranks rests on nothing that they send.
    run = tonnage("", options=world(4, "0"), command=[*command, "own"])
    assert "rows 4000" in run.err and run.verdict["unknown_values"] is None
    assert not any("ranks that were not run" in sentence for sentence in run.verdict["unknown"])


def test_a_rank_alone_does_what_it_does_among_others(tonnage):
    live = tonnage("", options=["--gpus", "4"], command=[*TORCHRUN, "4", str(SCRIPTS / "world.py"), "hsdp"])
    assert live.code == 0, live.err
    alone = tonnage("", options=world(4, "2"), command=[*TORCHRUN, "4", str(SCRIPTS / "world.py"), "hsdp"])
    assert alone.code == 0, alone.err

    def rows(run):
        table = run.table()
        process = next(one["process"] for one in run.verdict["devices"] if one["rank"] == 2)
        columns = ("process", "kind", "device", "address", "size", "stream")
        kinds = {"alloc", "free_requested", "free_completed", "segment_alloc", "driver_malloc", "driver_context"}
        every = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
        return [row[1:] for row in every if row[0] == process and row[1] in kinds]

    assert len(rows(alone)) > 1000
    assert rows(alone) == rows(live)


@pytest.mark.parametrize("options", [["--gpus", "2"], world(2, "1"), world(4, "1,2")])
def test_symmetric_memory(tonnage, options):
    """16 MiB and the signals before them in whole pieces, charged once, in whichever process maps it."""
    ranks = "2" if "--gpus" in options else "4"
    run = tonnage("", options=options, command=[*TORCHRUN, ranks, str(SCRIPTS / "symmetric.py")])
    assert run.code == 0, run.err
    printed = re.findall(r"(made|met|freed) (\d+) (\d+)", run.err)
    # The data that ranks exchange about it is in a segment that PyTorch has already.
    assert {(what, int(size)) for what, _, size in printed} == {("made", 18 << 20), ("met", 18 << 20), ("freed", 0)}
    assert all(device["at_peak"]["other"] == 18 << 20 for device in run.verdict["devices"])


def test_symmetric_memory_of_two_machines_is_not_to_be_had(tonnage):
    options = [*world(4, "0"), "--gpus", "2"]
    run = tonnage("", options=options, command=[*TORCHRUN, "2", str(SCRIPTS / "symmetric.py")])
    assert run.code == 2, run.err
    (exception,) = run.verdict["exceptions"]
    assert "Failed to send fd" in exception["message"]


@pytest.mark.parametrize(("how", "more"), [("hsdp", "bound"), ("ddp", ""), ("address", "kept")])
def test_one_rank_of_64(tonnage, how, more):
    run = tonnage("world.py", how, *more.split(), options=world(64, "63"))
    assert run.code == 0, run.err
    whole = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in PARAMETERS) * LAYERS
    expected = {"hsdp": shard_of(4, 3), "ddp": whole, "address": shard_of(64, 63)}[how]
    assert f"shard 63 {expected}" in run.err


def test_sums_over_ranks_that_do_not_run(tonnage, tmp_path):
    script = tmp_path / "sums.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "torch.cuda.set_device(5)\n"
        "dist.init_process_group('nccl')\n"
        "found = []\n"
        "for name in ('SUM', 'AVG', 'MAX', 'PRODUCT'):\n"
        "    value = torch.tensor([3], device='cuda')\n"
        "    dist.all_reduce(value, getattr(dist.ReduceOp, name))\n"
        "    found.append(value.item())\n"
        "part = torch.empty(1, device='cuda')\n"
        "dist.reduce_scatter_tensor(part, torch.arange(6., device='cuda'))\n"
        "print('found', found, part.item(), flush=True)\n"
    )
    run = tonnage(None, options=world(6, "5"), command=[PYTHON, str(script)])
    assert run.code == 0, run.err
    assert "found [18, 3, 3, 729] 30.0" in run.err
    values = run.verdict["unknown_values"]
    assert values["sizes_absent"] == 4 and values["first_size"]["file"].endswith("sums.py")
    assert any("a sum over N ranks is N times" in sentence for sentence in run.verdict["unknown"])


def test_ranks_that_run_say_each_other_objects(tonnage):
    run = tonnage("world.py", "objects", options=world(16, "0,3"))
    assert run.code == 0, run.err
    # Ranks that do not run are taken to send the same as the rank that requests it.
    assert "gathered 0 [0, 0, 0, 3, 0" in run.err
    assert "gathered 3 [0, 3, 3, 3, 3" in run.err
    assert "told 0 ['from 0']" in run.err and "told 3 ['from 0']" in run.err


def test_a_slow_rank_is_waited_for(tonnage, tmp_path):
    """Many ranks share a machine: torch would give up after five minutes."""
    script = tmp_path / "objects.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "get = dist.TCPStore.get\n"
        "def wait(store, key):\n"
        "    if 'objects' in key:\n        print('waits for', store.timeout.days, 'days', flush=True)\n"
        "    return get(store, key)\n"
        "dist.TCPStore.get = wait\n"
        "dist.init_process_group('nccl')\n"
        "print(dist.get_rank(), 'has', (said := [None] * 4, dist.all_gather_object(said, 7))[0], flush=True)\n"
    )
    run = tonnage("", options=world(4, "0,1"), command=[*TORCHRUN, "4", str(script)])
    assert run.err.count("has [7, 7, 7, 7]") == 2, run.err
    assert set(re.findall(r"waits for (\d+) days", run.err)) == {"7"}


def test_objects_of_a_rank_that_does_not_run_are_missed(tonnage):
    run = tonnage("world.py", "objects", options=world(16, "3"))
    assert run.code == 2
    assert "rank 3 waits for objects from rank 0, which tonnage does not run: name it too, --ranks 0,3" in run.err


def test_a_rank_that_runs_out_of_memory_ends_the_others(tonnage):
    run = tonnage("world.py", "ddp", options=[*world(16, "0,1"), "--capacity", "600MiB"])
    assert run.code == 1, run.err
    assert run.verdict["outcome"] == "does_not_fit"
    assert run.verdict["need"]["known"] == "replayed"


def test_the_error_of_a_rank_is_not_hidden_by_the_others_that_are_ended(tonnage, tmp_path):
    script = tmp_path / "one_fails.py"
    script.write_text(
        "import os, time, torch\n"
        "x = torch.ones(1 << 20, device='cuda')\n"
        "if os.environ['RANK'] == '7':\n"
        "    raise ValueError('rank 7 has no data')\n"
        "time.sleep(60)\n"
    )
    run = tonnage(None, options=world(8, "0,7"), command=[PYTHON, str(script)])
    assert run.code == 2, run.err
    assert run.verdict["outcome"] == "failed"
    (exception,) = run.verdict["exceptions"]
    assert (exception["message"], exception["place"]["line"]) == ("rank 7 has no data", 4)


def test_one_rank_of_each_stage_of_a_pipeline_is_run(tonnage):
    run = tonnage("pipeline.py", options=world(16, "auto"))
    assert run.code == 0, run.err
    verdict = run.verdict
    assert verdict["ranks_run"] == {"world_size": 16, "ranks": [0, 4, 8, 12], "differing": []}
    first, second, third, last = sorted(verdict["devices"], key=lambda device: device["rank"])
    # The last stage has the logits, the first the embedding and the most micro-batches.
    assert last["peak_allocated"] > first["peak_allocated"] > second["peak_allocated"] > third["peak_allocated"]


def test_a_try_without_a_rank_that_is_needed_is_told_from_the_job(tonnage, tmp_path):
    """Rank 1 waits for objects of rank 2, which is known only when it does."""
    script = tmp_path / "handed_on.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "x = torch.ones(1, device='cuda')\n"
        "rank, objects = dist.get_rank(), ['shape']\n"
        "if rank < 2:\n"
        "    dist.recv_object_list(objects, src=rank + 1)\n"
        "if rank > 0:\n"
        "    dist.send_object_list(objects, dst=rank - 1)\n"
    )
    command = [PYTHON, str(script)]
    alone = tonnage(None, options=world(3, "0"), command=command)
    assert alone.code == 2
    assert "name it too, --ranks 0,1\n" in alone.err
    told = "what rank 1 holds, which does something else than those that were run: --ranks auto runs it too"
    assert told in alone.verdict["unknown"]
    run = tonnage(None, options=world(3, "auto"), command=command)
    assert run.code == 0, run.err
    assert "name it too, --ranks 0,1,2\n" in run.err
    assert "what is above was a try without rank 2, which the others need; running ranks 0–2\n" in run.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ranks", "0"], "--world-size"),
        (world(4, "4"), "there is no rank 4 in a job of 4"),
        (world(512, "0,8,16,24,32,40,48,56,64"), "at most 64 GPUs"),
        (world(4, "3-1"), "write ranks with commas"),
    ],
)
def test_ranks_that_make_no_sense_are_refused(tonnage, options, words):
    run = tonnage("world.py", "ddp", options=options)
    assert run.code == 2 and words in run.err, run.err
