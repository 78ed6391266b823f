# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage record` and `tonnage verify`, with the stand-in in the role of the GPU.

The job runs inside a dry run that does not load its own Python hook, so
`tonnage record` finds a CUDA driver and does not know that it is simulated. The
recording of that outer dry run, which the stand-in makes, is the truth that the
inner recording is compared with.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import PYTHON, TONNAGE, environment, read_table

# Takes the hook of the outer dry run away.
WITHOUT_HOOK = 'PYTHONPATH=${PYTHONPATH#*/python}; export PYTHONPATH=${PYTHONPATH#:}; exec "$@"'

TRAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    loss = model(torch.randn(256, 1024, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("allocated", torch.cuda.max_memory_allocated(), "reserved", torch.cuda.max_memory_reserved())
"""

KEEPS_GRAPHS = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(4)]).cuda()
losses = []
while True:
    losses.append(model(torch.randn(32768, 4096, device="cuda")).pow(2).mean())
"""

KILLED = """
import os, time, torch
from torch import nn
model, started = nn.Linear(1024, 1024).cuda(), time.monotonic()
while time.monotonic() - started < 1.5:
    model(torch.randn(256, 1024, device="cuda")).sum().backward()
os.kill(os.getpid(), 9)
"""

# A GPU computes this sum; the stand-in, in its role, computes nothing, and the dry run draws a value.
DECIDES = """
import torch
weights = torch.randn(2048, 2048, device="cuda")
total = (weights @ weights).sum()
if total.item() == 0.0:
    kept = torch.empty(7 << 20, device="cuda")
after = [torch.empty(1 << 20, device="cuda") for _ in range(8)]
"""

RANKS = """
import os, torch
from torch import nn
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(2048, 2048).cuda())
model(torch.randn(256, 2048, device="cuda")).sum().backward()
torch.distributed.destroy_process_group()
"""


@dataclass
class Recorded:
    code: int
    out: str
    err: str
    recording: Path
    truth: Path

    @property
    def verdict(self):
        return json.loads(self.out)


@pytest.fixture
def on_gpu(tmp_path):
    """Runs a command of tonnage where the stand-in is the GPU."""

    def run(
        command, source, *arguments, gpu=("--gpu", "rtx3090"), launcher=(PYTHON,), json=True, report=False, **variables
    ):
        script = tmp_path / "job.py"
        script.write_text(source)
        recording, truth = tmp_path / "real.tonnage", tmp_path / "truth.tonnage"
        output = tmp_path / "report.json" if report else recording
        exit_code = tmp_path / "exit"
        inner = [TONNAGE, command, *(["--json"] if json else []), "--force", "-o", str(output), *arguments]
        inner += ["--", *launcher, str(script)]
        keep_code = WITHOUT_HOOK.replace("exec ", "") + f'; echo $? > "{exit_code}"'
        outer = [TONNAGE, "run", "--no-progress", "--stop-at-oom", "--force", "-o", str(truth), *gpu]
        # The verdict of the outer run goes nowhere; what the inner one prints is what a person would see.
        line = [*outer, "--", "bash", "-c", f"({keep_code}) > {tmp_path}/out 2> {tmp_path}/err", "job", *inner]
        subprocess.run(line, capture_output=True, timeout=300, env=environment(**variables), cwd=tmp_path)
        out, err = (Path(tmp_path / name).read_text() for name in ("out", "err"))
        return Recorded(int(exit_code.read_text()), out, err, recording, truth)

    return run


def blocks(path, process=0):
    """The allocations and frees of torch's allocator: kind and address, in order."""
    rows = read_table(path).select(["kind", "process", "address"]).to_pylist()
    kinds = ("alloc", "free_requested")
    return [(row["kind"], row["address"]) for row in rows if row["kind"] in kinds and row["process"] == process]


def tonnage_says(command, *arguments):
    return subprocess.run([TONNAGE, command, *arguments], capture_output=True, text=True, check=False, timeout=120)


def test_a_recording_of_a_gpu_has_what_a_dry_run_has(on_gpu):
    done = on_gpu("record", TRAIN)
    assert done.code == 0, done.err
    verdict = done.verdict
    # The figures of torch itself, which the script printed; stdout is for the JSON.
    words = done.err.split()
    said = {name: int(words[words.index(name) + 1]) for name in ("allocated", "reserved")}
    use = verdict["devices"][0]
    assert use["peak_allocated"] == said["allocated"]
    assert use["peak_reserved"] == said["reserved"]
    truth = blocks(done.truth)
    # The outer recording goes on while Python ends.
    assert len(truth) > 100 and blocks(done.recording) == truth[: len(blocks(done.recording))]
    assert len(blocks(done.recording)) > 0.95 * len(truth)
    assert verdict["gpu"] == "rtx3090"
    assert verdict["capacity"]["known"] == "measured"
    assert verdict["context"] == {"bytes": 256 << 20, "known": "measured"}
    assert verdict["margin"]["uncounted"] == []
    table = read_table(done.recording).to_pylist()
    assert any(row["kind"] == "alloc" and row["stack"] is not None for row in table)
    owners = {row["text"].split()[0] for row in table if row["kind"] == "owner"}
    assert {"weights", "gradients", "optimizer_state"} <= owners
    phases = {row["name"] for row in table if row["kind"] == "mark_start" and row["text"] == "phase"}
    assert phases == {"forward", "backward", "step"}
    # The charge of the stand-in at its fullest moment is equal to the measured and computed one.
    charged = [row["charged"] for row in read_table(done.truth).to_pylist() if row["charged"] is not None]
    assert use["peak_used"] == max(charged)
    for command in ("info", "explain", "replay", "report"):
        told = tonnage_says(command, str(done.recording), *(["--text"] if command == "report" else []))
        assert told.returncode == 0, told.stderr


def test_an_out_of_memory_is_explained_on_the_terminal(on_gpu):
    done = on_gpu("record", KEEPS_GRAPHS, json=False)
    assert done.code == 1
    assert "torch.OutOfMemoryError" in done.err
    assert "out of memory on NVIDIA GeForce RTX 3090" in done.err
    assert "TN211" in done.err and "`losses` keeps the graphs" in done.err
    # The explanation stands below, and ends with the next command.
    assert "tonnage fit --gpu" in done.err
    assert done.out == "", "stdout is the script's"


def test_a_killed_job_leaves_what_was_recorded(on_gpu):
    done = on_gpu("record", KILLED)
    assert done.code == 128 + 9
    verdict = done.verdict
    assert verdict["ending"] == "signal 9"
    assert "killed" in verdict["incomplete"]
    recorded, truth = blocks(done.recording), blocks(done.truth)
    assert recorded == truth[: len(recorded)]
    assert len(recorded) > len(truth) / 4


def test_each_rank_has_its_rows(on_gpu):
    gpus = ("--gpu", "rtx3090", "--gpus", "2")
    launcher = (str(Path(PYTHON).parent / "torchrun"), "--nproc-per-node", "2")
    done = on_gpu("record", RANKS, gpu=gpus, launcher=launcher)
    assert done.code == 0, done.err
    assert {(use["rank"], use["device"]) for use in done.verdict["devices"]} == {(0, 0), (1, 1)}


def test_without_a_gpu_the_next_step_is_a_dry_run(tmp_path):
    done = subprocess.run(
        [TONNAGE, "record", "--", PYTHON, "train.py"],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert "no NVIDIA GPU" in done.stderr and "tonnage run --gpu NAME -- " in done.stderr


def verify_recorded(path, source, *arguments):
    """Runs a script dry and compares that with a recording that is there already."""
    script, report = path / "job.py", path / "again.json"
    script.write_text(source)
    line = [TONNAGE, "verify", "--force", "--recorded", str(path / "real.tonnage"), "-o", str(report), *arguments]
    done = subprocess.run(
        [*line, "--", PYTHON, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
        cwd=path,
        check=False,
    )
    return done, json.loads(report.read_text())


def test_verify_finds_nothing_but_a_larger_context(on_gpu, tmp_path):
    done = on_gpu("verify", TRAIN, gpu=("--gpu", "rtx3090", "--context", "400MiB"), json=False, report=True)
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["same"] and found["settings"] == []
    process = found["processes"][0]
    assert process["same_events"] == process["real_events"] == process["dry_events"] > 200
    assert process["moved_blocks"] == 0
    figures = {one["name"]: (one["real"], one["dry"]) for one in process["figures"]}
    assert figures["beside_first"] == (400 << 20, 256 << 20)
    assert figures["peak_allocated"][0] == figures["peak_allocated"][1]
    assert "the GPU has 144.00 MiB more outside PyTorch" in done.out
    assert "allocated " in done.out, "the script's own output is shown once"
    assert done.out.count("reserved 1") == 1


def test_verify_names_another_setting_and_another_gpu(on_gpu, tmp_path):
    done = on_gpu("record", TRAIN, CUBLAS_WORKSPACE_CONFIG=":16:8")
    assert done.code == 0, done.err
    again, found = verify_recorded(tmp_path, TRAIN)
    assert again.returncode == 1, again.stderr
    assert [one["what"] for one in found["settings"]] == ["CUBLAS_WORKSPACE_CONFIG"]
    first = found["processes"][0]["partings"][0]
    assert first["known"] == "certain"
    assert "workspace of cuBLAS" in first["cause"] and "CUBLAS_WORKSPACE_CONFIG is :16:8" in first["cause"]
    places = [one["place"] for one in found["processes"][0]["partings"] if one["place"]]
    assert {place["file"] for place in places} == {"job.py"}
    assert "different" in again.stdout and "CUBLAS_WORKSPACE_CONFIG" in again.stdout
    # Everything but workspaces and the segments around them agrees.
    process = found["processes"][0]
    assert process["same_events"] >= 0.85 * process["real_events"]
    assert all(
        "workspace of cuBLAS" in one["cause"] for one in process["partings"] if one["real_bytes"] or one["dry_bytes"]
    )
    again, found = verify_recorded(tmp_path, TRAIN, "--gpu", "h100")
    named = {one["what"]: one for one in found["settings"]}
    assert named["GPU"]["real"] == "NVIDIA GeForce RTX 3090" and "H100" in named["GPU"]["dry"]
    assert again.returncode == 1


def test_verify_names_a_value_that_the_script_decides_by(on_gpu, tmp_path):
    done = on_gpu("verify", DECIDES, json=False, report=True)
    assert done.code == 1, done.err
    found = json.loads((tmp_path / "report.json").read_text())
    (parting,) = found["processes"][0]["partings"]
    assert parting["real_bytes"] == 28 << 20 and parting["only_dry"] == 0
    assert "branches on" in parting["cause"] and "job.py:5" in parting["cause"]
    assert parting["place"] == {"file": "job.py", "line": 6, "function": "<module>"}
