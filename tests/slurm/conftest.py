# SPDX-License-Identifier: MIT OR Apache-2.0
"""Clusters, and forecasts from real dry runs.

`TONNAGE` names the command, `TORCH_PYTHON` a Python with torch. `SLURM_NEWER` is the folder of unpack.py; without it,
the newer version is not tested. Without slurmctld and munged nothing is, unless `SLURM_REQUIRED` is set.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import jobs
import pytest
from cluster import PATIENCE, SHARDS, Answer, Cluster, Programs

NEWER = os.environ.get("SLURM_NEWER")


def programs(version: str) -> Programs:
    if version == "newer" and not NEWER:
        pytest.skip("SLURM_NEWER names no folder: see tests/slurm/unpack.py")
    found = Programs(Path(NEWER) if version == "newer" and NEWER else None)
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(name, path=found.path)]
    if missing and not os.environ.get("SLURM_REQUIRED"):
        pytest.skip(f"{', '.join(missing)} not installed")
    return found


@pytest.fixture(scope="session", params=["installed", "newer"])
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory, version: str) -> Path:
    """The settings of the cluster, which a test writes before its first request."""
    return tmp_path_factory.mktemp(f"settings-{version}") / "tonnage.toml"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, version: str) -> Path:
    """The program that the hooks start: a link, which a test may point elsewhere."""
    return tmp_path_factory.mktemp(f"program-{version}") / "tonnage"


def started(cluster: Cluster):
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, version: str, settings: Path, program: Path):
    environment = {"TONNAGE_SLURM_SETTINGS": str(settings), "TONNAGE_SLURM_PROGRAM": str(program)}
    yield from started(Cluster(tmp_path_factory.mktemp(f"slurm-{version}"), programs(version), environment=environment))


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory, version: str):
    """Slurm as it comes."""
    yield from started(Cluster(tmp_path_factory.mktemp(f"stock-{version}"), programs(version), hooks=False))


class Site:
    """A cluster as its administrator has it."""

    def __init__(self, cluster: Cluster, settings: Path, program: Path):
        self.cluster = cluster
        self.settings = settings
        self._program = program

    def set(self, mode: str, store: Path, seconds: int = PATIENCE) -> None:
        """The permissions of tonnage, where its forecasts are, and how long the hooks wait for it."""
        several = str(self.cluster.shards_per_task).lower()
        self.settings.write_text(
            f'store = "{store}"\nmode = "{mode}"\nshards_of_several_gpus = {several}\n'
            f"client_seconds = {seconds}\ncontroller_seconds = {seconds}\n"
            f'[[gpu]]\ntype = "h100"\nshards = {SHARDS}\n'
        )

    def use(self, program: Path | None) -> None:
        """The program that the hooks start; nothing if it is missing."""
        self._program.unlink(missing_ok=True)
        if program:
            self._program.symlink_to(program)

    def run(self, *words: str, **more) -> Answer:
        return self.cluster.run(*words, **{**self.cluster.environment, **more})

    def other_client(self, *words: str, **more) -> Answer:
        """The same from a client that knows nothing of the hooks, so that only the controller sees the job."""
        return self.run(*words, **{**self.cluster.other_client, **more})


@pytest.fixture
def site(shared: Cluster, settings: Path, program: Path, tmp_path: Path):
    site = Site(shared, settings, program)
    site.use(Path(os.environ["TONNAGE"]).resolve())
    site.set("fill", tmp_path / "no-forecasts")
    yield site
    shared.cancel_all()


@dataclass
class Jobs:
    """Programs, and forecasts of them."""

    #: Where the programs and their batch scripts are.
    jobs: Path
    #: The store.
    folder: Path
    forecasts: dict[str, dict]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder, kept = tmp_path_factory.mktemp("jobs"), tmp_path_factory.mktemp("store")
    jobs.write(folder)
    return Jobs(folder, kept, jobs.forecasts(folder, kept))
