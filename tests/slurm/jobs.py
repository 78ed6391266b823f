# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs of which the GPU memory is known, and their forecasts from dry runs with the real torch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

ONE = """\
import sys
import torch

held = torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device="cuda")
"""

RANKS = """\
import os
import sys
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
held = torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device="cuda")
dist.barrier()
dist.destroy_process_group()
"""

#: Commands, with what they hold on each GPU, in GiB. The memory of CUDA, NCCL and kernels comes on top.
JOBS = {
    "small": (["python", "train.py", "29"], 29),
    "ranks": (["torchrun", "--nproc-per-node", "2", "ranks.py", "39"], 39),
    "pair": (["torchrun", "--nproc-per-node", "2", "ranks.py", "27"], 27),
    "huge": (["python", "train.py", "96"], 96),
}


def write(folder: Path) -> None:
    """The programs, and a batch script for each job."""
    (folder / "train.py").write_text(ONE)
    (folder / "ranks.py").write_text(RANKS)
    for name, (words, _) in JOBS.items():
        script(folder, name, " ".join(words))
    script(folder, "unknown", "python train.py 5")
    script(folder, "srun_ranks", "srun " + " ".join(JOBS["ranks"][0]))


def script(folder: Path, name: str, command: str) -> None:
    # The job itself needs no GPU here: it only holds what it was given.
    (folder / f"{name}.sh").write_text(f"#!/bin/sh\nif false; then\n    {command}\nfi\nsleep 60\n")


def forecasts(folder: Path, store: Path) -> dict[str, dict]:
    """A forecast of each job, from a dry run."""
    python = Path(os.environ["TORCH_PYTHON"])
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    runs = {}
    for name, (words, _) in JOBS.items():
        make = [os.environ["TONNAGE"], "forecast", "make", "--store", str(store), "--gpu", "h100", "--json"]
        make += ["--gpus", "2"] if "torchrun" in words else []
        runs[name] = subprocess.Popen(
            [*make, "--", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    made = {}
    for name, run in runs.items():
        out, err = run.communicate(timeout=300)
        assert run.returncode == (1 if name == "huge" else 0), (name, err)
        made[name] = json.loads(out)
    return made
