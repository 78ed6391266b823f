# SPDX-License-Identifier: MIT OR Apache-2.0
"""A control plane for all tests, and the webhook in it as its manifests put it there.

`CONTROLPLANE` names the program that is built in tests/kubernetes/controlplane, `TONNAGE_ADMIT` the webhook. Without
them or without etcd the tests are skipped, unless `KUBERNETES_REQUIRED` is set.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import DRA, REGISTRATIONS, Cluster, Namespace, claim_spec, started
from webhook import Webhook, wait

SERVICE, SYSTEM = "tonnage-admit", "tonnage-system"
MIB = 1 << 20
# The GPUs of the tests.
GPU, GPU_MIB = "h100-80gb", 81_559


def pytest_configure(config: pytest.Config) -> None:
    """Names what may be left out."""
    config.addinivalue_line("markers", "large: takes a minute or more")


def missing() -> str | None:
    """Why there is no control plane."""
    program = os.environ.get("CONTROLPLANE")
    if not program or not Path(program).is_file():
        return "CONTROLPLANE names no program: docs/guides/kubernetes.md tells how it is built"
    if not shutil.which("etcd"):
        return "etcd is not installed"
    if not importlib.util.find_spec("yaml"):
        return "PyYAML is not installed"
    return None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane."""
    reason = missing()
    if reason is not None:
        if os.environ.get("KUBERNETES_REQUIRED"):
            pytest.fail(reason)
        pytest.skip(reason)
    yield from started(tmp_path_factory.mktemp("kubernetes"), Path(os.environ["CONTROLPLANE"]))


class Site:
    """The webhook in a cluster, as its administrator has it."""

    def __init__(self, cluster: Cluster, store: Path) -> None:
        import manifests

        self.manifests = manifests
        self.cluster, self.store = cluster, store
        self.program = Path(os.environ["TONNAGE_ADMIT"])
        self.webhook: Webhook | None = None
        self.more: list[str] = []
        self.numbers = itertools.count()
        for one in manifests.read(manifests.DEPLOY / "base"):
            manifests.apply(cluster, one)
        cluster.tokens["webhook"] = cluster.token(SYSTEM, SERVICE)
        self.route(lambda: self.webhook.port if self.webhook else 0)

    def route(self, port: Callable[[], int]) -> None:
        """Where the service leads."""
        service = self.cluster.get(f"/api/v1/namespaces/{SYSTEM}/services/{SERVICE}")
        self.cluster.egress.routes = {f"{service['spec']['clusterIP']}:443": port}

    def new(self) -> Webhook:
        """A webhook that is not started yet."""
        name = f"webhook-{next(self.numbers)}"
        return Webhook(self.cluster, self.program, self.store, name, f"{SERVICE}.{SYSTEM}.svc")

    def start(self, mode: str) -> Webhook:
        """The webhook in this mode, and the API server calls it."""
        self.stop()
        self.webhook = self.new()
        self.webhook.more = self.more
        self.webhook.start(mode)
        self.register(mode, self.webhook.authority.certificate.read_bytes())
        return self.webhook

    def register(self, mode: str, authorities: bytes, url: str | None = None, seconds: float = 30) -> None:
        """Registers the webhook with these authorities, and waits until the API server calls it."""
        (one,) = (
            one
            for one in self.manifests.read(self.manifests.DEPLOY / mode)
            if one["kind"] == "MutatingWebhookConfiguration"
        )
        # As certificates.sh does.
        config = one["webhooks"][0]["clientConfig"]
        config["caBundle"] = base64.b64encode(authorities).decode()
        if url is not None:
            del config["service"]
            config["url"] = url
        self.cluster.delete(f"{REGISTRATIONS}/{SERVICE}")
        self.manifests.apply(self.cluster, one)
        wait("asked: the webhook", self.is_asked, seconds)

    def is_asked(self) -> bool:
        """Whether the API server calls the webhook, which in every mode answers a claim that no GPU can fill."""
        claim = {"metadata": {"name": "probe"}, "spec": claim_spec("1000Gi")}
        answer = self.cluster.request("POST", f"{DRA}/namespaces/default/resourceclaims?dryRun=All", claim)
        return "tonnage: the job requests" in f"{answer.message}{answer.warnings}"

    def stop(self) -> None:
        """Ends the webhook, and the API server calls it no longer."""
        self.cluster.delete(f"{REGISTRATIONS}/{SERVICE}")
        if self.webhook and self.webhook.process:
            wait("not asked: the webhook", lambda: not self.is_asked(), 30)
            self.webhook.process.kill()
            self.webhook.process.wait()
        self.webhook = None

    def forecast(self, words: list[str], mib: int, image: str | None = "train:1") -> str:
        """Puts a forecast into the store, as `tonnage forecast make` does; its name."""
        job = {"command": words, "image": image, "sources": {}, "allocator": None}
        key = {**job, "world_size": None, "gpus": None, "torch": "2.15.0", "gpu": GPU}
        name = digest(list(job.values()))[:16] + digest(key)[:8]
        role = {"name": "GPU 0", "gpus": 1, "peak": (mib - 1) * MIB, "known": "exact", "uncounted": MIB}
        role |= {"bound": mib * MIB, "least": None}
        forecast = {
            "schema_version": 1,
            "name": name,
            "key": key,
            "family": "train.py",
            "gpu_memory": GPU_MIB * MIB,
            "fits": "yes" if mib <= GPU_MIB else "no",
            "roles": [role],
            "evidence": [{"source": "dry_run", "what": "a dry run", "complete": True}],
            "larger_gpus": [],
            "unknown": [],
        }
        folder = self.store / "forecasts"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f".{name}").write_text(json.dumps(forecast))
        (folder / f".{name}").rename(folder / f"{name}.json")
        return name


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


@pytest.fixture(scope="session")
def whole_site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The manifests, applied."""
    return Site(cluster, tmp_path_factory.mktemp("forecasts"))


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    """The webhook, ended after each test."""
    yield whole_site
    whole_site.stop()


@pytest.fixture
def gpus(cluster: Cluster) -> Iterator[Callable[[int, int], None]]:
    """Adds so many nodes with so many GPUs each, for a test."""
    yield cluster.add_nodes
    cluster.remove_nodes()


@pytest.fixture
def namespace(cluster: Cluster, gpus: Any, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of a test, with a template of claims that have no number."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[-60:].strip("-")
    one = Namespace(cluster, name)
    one.template("gpu")
    yield one
    one.clear()


@pytest.fixture(autouse=True)
def logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a failure, the last lines of every program."""
    failed = request.session.testsfailed
    yield
    if "cluster" in request.fixturenames and request.session.testsfailed > failed:
        for path in sorted(Path(request.getfixturevalue("cluster").folder).glob("*.log")):
            text = path.read_text(errors="replace").splitlines()
            print(f"--- {path.name}", *text[-6:], sep="\n")


def memory_of(process: subprocess.Popen[bytes]) -> int:
    """The most memory that a process has had, in KiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
