# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage fleet watch` beside jobs that run, scraped by a real Prometheus.

The stand-in has the role of the GPU, as in tests/torch/test_record.py: `tonnage record` finds a CUDA driver and does
not know that it is simulated. The values that Prometheus stores are compared with those that the job itself
read of torch and the device.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import daemon
import pytest
from daemon import ROOT, wait_for

TONNAGE = os.environ.get("TONNAGE", str(ROOT / "target" / "debug" / "tonnage"))
PYTHON = os.environ.get("TORCH_PYTHON", "python")

MISSING = [name for name in ("promtool", "prometheus") if not shutil.which(name)]
if MISSING and not os.environ.get("PROMETHEUS_REQUIRED"):
    pytest.skip(f"{', '.join(MISSING)} not installed", allow_module_level=True)

# Takes the hook of the outer dry run away.
WITHOUT_HOOK = 'PYTHONPATH=${PYTHONPATH#*/python}; export PYTHONPATH=${PYTHONPATH#:}; exec "$@"'

#: Reports what torch counts, and waits until it may go on; three times.
JOB = """
import json, os, sys, time
import torch
from torch import nn

def tell(name):
    stats = torch.cuda.memory_stats()
    said = {key: stats[f"{key}_bytes.all.current"] for key in ("allocated", "reserved", "inactive_split")}
    said |= {f"peak_{key}": stats[f"{key}_bytes.all.peak"] for key in ("allocated", "reserved")}
    free, total = torch.cuda.mem_get_info()
    said |= {"free": free, "total": total, "ooms": stats["num_ooms"]}
    with open(f"{name}.tmp", "w") as file:
        json.dump(said, file)
    os.rename(f"{name}.tmp", name)
    while not os.path.exists(f"go-{name}"):
        time.sleep(0.05)

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.randn(256, 1024, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
tell("trained")
kept = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
del kept
tell("failed")
"""

FOREVER = """
import time, torch
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
torch.nn.Linear(8, 8).cuda()(torch.randn(8, 8, device="cuda"))
while True:
    time.sleep(0.05)
"""


def environment() -> dict[str, str]:
    dropped = ("TONNAGE_LIVE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    # `tonnage record` runs in a dry run here, and what it writes is read.
    return {**kept, "TONNAGE_PASS_THROUGH": tempfile.gettempdir()}


class Site:
    """A folder with jobs, and who watches it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = folder / "not there yet" / "live"
        self.jobs: list[subprocess.Popen[Any]] = []
        words = [TONNAGE, "fleet", "watch", str(self.live), "--listen", "127.0.0.1:0", "--keep", "600"]
        self.log = folder / "watch.log"
        with open(self.log, "wb") as log:
            self.watch = subprocess.Popen(words, stderr=log, env=environment())
        self.address = wait_for(self._address, self.log.read_text)

    def _address(self) -> str | None:
        found = re.search(r"http://(\S+)/metrics", self.log.read_text())
        return found[1] if found else None

    def text(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=30) as answer:
            return answer.read().decode()

    def start(self, name: str, source: str) -> subprocess.Popen[Any]:
        folder = self.folder / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(source)
        inner = [TONNAGE, "record", "--live", str(self.live), "--", PYTHON, f"{name}.py"]
        outer = [TONNAGE, "run", "--no-progress", "--stop-at-oom", "--gpu", "rtx3090", "-o", "truth.tonnage", "--"]
        with open(folder / "log", "wb") as log:
            job = subprocess.Popen(
                [*outer, "bash", "-c", WITHOUT_HOOK, "job", *inner],
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=folder,
                start_new_session=True,
            )
        self.jobs.append(job)
        return job

    def end(self) -> None:
        for job in self.jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        self.watch.terminate()
        assert self.watch.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        yield site
    finally:
        site.end()


@pytest.fixture(scope="module")
def query(site, tmp_path_factory):
    with daemon.prometheus(tmp_path_factory.mktemp("prometheus"), site.address) as query:
        yield query


def one_value(query, expression: str) -> float | None:
    found = query(expression)
    return float(found[0]["value"][1]) if len(found) == 1 else None


def expected(said: dict[str, int]) -> dict[str, int]:
    metrics = {f"tonnage_{name}_bytes": said[name] for name in ("allocated", "reserved", "inactive_split")}
    metrics |= {f"tonnage_peak_{name}_bytes": said[f"peak_{name}"] for name in ("allocated", "reserved")}
    in_use = said["total"] - said["free"]
    metrics |= {"tonnage_device_used_bytes": in_use, "tonnage_device_memory_bytes": said["total"]}
    # The job is alone on its GPU.
    metrics |= {"tonnage_used_bytes": in_use, "tonnage_overhead_bytes": in_use - said["reserved"]}
    return metrics | {"tonnage_process_oom_total": said["ooms"]}


def test_a_job_that_trains_runs_out_of_memory_and_ends(site, query):
    assert one_value(query, "tonnage_watch_folder_found") == 0
    job, folder = site.start("train", JOB), site.folder / "train"
    for name in ("trained", "failed"):

        def has_said(name=name) -> bool:
            assert job.poll() is None, (folder / "log").read_text()
            return (folder / name).exists()

        wait_for(has_said, lambda: (folder / "log").read_text())
        said = expected(json.loads((folder / name).read_text()))
        assert said["tonnage_process_oom_total"] == (name == "failed")

        def stored(said=said) -> bool:
            selector = '{family="train.py",source="gpu",gpu="rtx3090",device="0",process="0"}'
            return {metric: one_value(query, metric + selector) for metric in said} == said

        wait_for(stored, lambda said=said: f"{said}\n{site.text()}")
        assert one_value(query, 'tonnage_job_running{family="train.py"}') == 1
        assert one_value(query, 'tonnage_recording_complete{family="train.py"}') == 1
        age = one_value(query, 'time() - tonnage_recording_last_event_timestamp_seconds{family="train.py"}')
        assert age is not None and -1 < age < 30
        (folder / f"go-{name}").touch()
    # 3 GiB and no more: what was refused never was.
    assert said["tonnage_peak_allocated_bytes"] - (3 << 30) < 1 << 30
    (labels,) = (found["metric"] for found in query('tonnage_allocated_bytes{family="train.py"}'))
    assert labels["gpu_uuid"].startswith("GPU-")
    assert job.wait(timeout=daemon.PATIENCE) == 0, (folder / "log").read_text()
    # The folder of the job is gone, and its last figures are still reported.
    assert not list(site.live.iterdir())
    wait_for(lambda: one_value(query, 'tonnage_job_running{family="train.py"}') == 0, site.text)
    assert one_value(query, 'tonnage_recording_complete{family="train.py"}') == 1
    peak = one_value(query, 'tonnage_peak_allocated_bytes{family="train.py"}')
    assert peak == said["tonnage_peak_allocated_bytes"]
    recorded = json.loads(subprocess.check_output([TONNAGE, "info", "--json", str(folder / "train.tonnage")]))
    assert recorded["recordings"], recorded


def test_a_job_that_is_killed_takes_the_place_of_the_one_before(site, query):
    job = site.start("forever", FOREVER)
    folder = site.folder / "forever"

    def runs() -> bool:
        assert job.poll() is None, (folder / "log").read_text()
        return one_value(query, 'tonnage_allocated_bytes{family="forever.py"}') is not None

    wait_for(runs, lambda: (folder / "log").read_text() + site.text())
    wait_for(lambda: one_value(query, 'tonnage_allocated_bytes{family="forever.py"} >= 2^30') is not None, site.text)
    assert {found["metric"]["run"] for found in query("tonnage_job_running")} == {"0"}
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    wait_for(lambda: one_value(query, 'tonnage_job_running{family="forever.py"}') == 0, site.text)
    assert one_value(query, 'tonnage_recording_complete{family="forever.py"}') == 0
    # Nobody was left to delete it.
    assert len(list(site.live.iterdir())) == 1


def test_promtool_finds_nothing_wrong_with_the_metrics(site, query):
    done = subprocess.run(["promtool", "check", "metrics"], input=site.text(), capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_who_connects_and_says_nothing_does_not_keep_others_from_asking(site, query):
    host, port = site.address.split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        assert "tonnage_watch_folder_found 1" in site.text()
        before = time.monotonic()
        for connection in idle:
            connection.settimeout(60)
            assert connection.recv(1) == b""
        assert time.monotonic() - before < 60
    finally:
        for connection in idle:
            connection.close()
