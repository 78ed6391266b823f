# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the tests run `tonnage` with a real torch.

`TONNAGE` names the binary, `TORCH_PYTHON` a Python with torch. Recordings are
read with pyarrow, which shares no code with what wrote them.
"""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.ipc
import pytest

SCRIPTS = Path(__file__).parent / "scripts"
TONNAGE = os.environ.get("TONNAGE", str(Path(__file__).parents[2] / "target" / "debug" / "tonnage"))
PYTHON = os.environ.get("TORCH_PYTHON", "python")


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float
    recording: Path

    @property
    def verdict(self):
        return json.loads(self.out)

    def table(self):
        return read_table(self.recording)


def read_table(path):
    with open(path, "rb") as file:
        return pyarrow.ipc.open_stream(file).read_all()


def environment(**more):
    """The environment of a run, without what would change its result."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}
    return {**kept, **more}


@pytest.fixture
def tonnage(tmp_path):
    """Runs `tonnage run` with a script of this folder; `--json` unless told otherwise."""

    def run(script, *arguments, options=(), command=None, json=True, timeout=300, **variables):
        recording = tmp_path / f"{len(list(tmp_path.glob('*.tonnage')))}.tonnage"
        command = command or [PYTHON, str(SCRIPTS / script), *arguments]
        line = [TONNAGE, "run", *(["--json"] if json else []), "-o", str(recording), *options, "--", *command]
        started = time.monotonic()
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=timeout, env=environment(**variables), cwd=tmp_path
        )
        return Result(done.returncode, done.stdout, done.stderr, time.monotonic() - started, recording)

    return run
