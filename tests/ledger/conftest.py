# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs programs dry and reads their verdicts.

`TONNAGE` names the command. Nothing here needs torch: verdicts are read as JSON, which is what users get.
"""

import json
import os
import subprocess
import tempfile

import pytest
from programs import compiled


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    return compiled("faults", tmp_path_factory.mktemp("programs"))


class Ran:
    """The output of a dry run, and its verdict."""

    def __init__(self, done, recording):
        lines = done.stdout.splitlines()
        start = next((index for index, line in enumerate(lines) if line == "{"), len(lines))
        self.lines = done.stderr.splitlines()
        self.verdict = json.loads("\n".join(lines[start:])) if start < len(lines) else None
        self.status = done.returncode
        self.recording = recording

    @property
    def least_free(self):
        return [device["least_free"] for device in self.verdict["devices_total"]]

    @property
    def unknown(self):
        return "\n".join(self.verdict["unknown"])

    def info(self):
        command = [os.environ["TONNAGE"], "info", "--json", self.recording]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return json.loads(said)["recordings"][0]


@pytest.fixture
def run(tmp_path):
    """Dry-runs a program, on a device of 24 GiB unless set otherwise."""

    def run(*command, gpus=1, capacity="24GiB", before=(), options=(), environment=None):
        recording = tmp_path / "run.tonnage"
        recording.unlink(missing_ok=True)
        tonnage = [os.environ["TONNAGE"], "run", "--gpu", "rtx3090", "--capacity", capacity, "--context", "256MiB"]
        line = [*before, *tonnage, "--gpus", str(gpus), "--json", "--no-progress", *options, "-o", recording, "--"]
        done = subprocess.run(
            [str(word) for word in [*line, *command]],
            capture_output=True,
            text=True,
            timeout=600,
            # Tests read what their programs write.
            env={**os.environ, "TONNAGE_PASS_THROUGH": tempfile.gettempdir(), **(environment or {})},
        )
        assert "TN305" not in done.stdout, "a process wrote a note that tonnage does not know"
        return Ran(done, recording)

    return run
