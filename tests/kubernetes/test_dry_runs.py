# SPDX-License-Identifier: MIT OR Apache-2.0
"""Jobs without a forecast, on a real control plane: held, dry-run with real torch, filled and placed.

The manifests of deploy/kubernetes/dry-runs are applied as they are; webhook and controller have the tokens of their
service accounts. Job, pod and their ends are Kubernetes' own; agent.py runs the containers of one node without a GPU.
`TONNAGE` names the command, `TONNAGE_CONTROLLER` the controller, `TORCH_PYTHON` a Python with torch.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import Agent, Image
from cluster import REGISTRATIONS, Cluster, Namespace, written
from conftest import GPU_MIB, SERVICE, SYSTEM, Site
from webhook import api_server, wait

FORECASTS = "/apis/tonnage.dev/v1alpha1/namespaces/{}/forecasts"
LABEL = "tonnage.dev/dry-runs"
GATE = "tonnage.dev/forecast"
MIB = 1 << 20
TRAIN = """
import sys, time, torch
width, seconds = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Linear(width, width, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(64, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
time.sleep(seconds)
"""
FAIL = "import torch; torch.zeros(1, device='cuda'); raise RuntimeError('no data here')"


class Controllers:
    """The controller as a process, started and ended by tests."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.count = cluster, 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Another controller."""
        self.count += 1
        command = [os.environ["TONNAGE_CONTROLLER"], "--image", "tonnage:1", "--node-selector", "pool=cpu"]
        command += ["--lease-seconds", "2", "--identity", f"controller-{self.count}", "--cpu", "1", "--memory", "2Gi"]
        command += [*api_server(self.cluster, "controller"), *more]
        self.process = self.cluster.run("controller", command)
        return self.process

    def kill(self) -> None:
        """Ends it without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def lines(self) -> list[Any]:
        """The output of the controllers."""
        lines = self.cluster.log("controller").splitlines() if self.count else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def done(self, step: str) -> int:
        """How often a step was done."""
        return sum(line["event"] == "done" and line["step"].startswith(step) for line in self.lines())


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files in the image of the jobs."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "train.py").write_text(TRAIN)
    (folder / "fail.py").write_text(FAIL)
    return folder


@pytest.fixture(scope="module")
def installed(whole_site: Site, cluster: Cluster) -> None:
    """The manifests, applied."""
    manifests = whole_site.manifests
    for one in manifests.read(manifests.DEPLOY / "dry-runs"):
        # Registrations come with the webhook.
        if one["kind"] != "MutatingWebhookConfiguration":
            if one["kind"] == "Deployment" and one["metadata"]["name"] == SERVICE:
                names = [variable["name"] for variable in one["spec"]["template"]["spec"]["containers"][0]["env"]]
                assert "TONNAGE_CLUSTER_FORECASTS" in names
            manifests.apply(cluster, one)
    cluster.tokens["controller"] = cluster.token(SYSTEM, "tonnage-controller")
    wait("there: forecasts", lambda: cluster.get(FORECASTS.format("default")) is not None)


@pytest.fixture
def agent(cluster: Cluster, image: Path) -> Iterator[Agent]:
    """A node without a GPU that runs pods."""
    tonnage, python = Path(os.environ["TONNAGE"]), Path(os.environ["TORCH_PYTHON"])
    path = f"{python.parent}:{os.environ['PATH']}"
    standin = str(tonnage.parent / "libtonnage_standin.so")
    images = {
        "train:1": Image(image, {"PATH": path, "TONNAGE_STANDIN": standin}),
        "tonnage:1": Image(image, files={"/usr/local/bin/tonnage": tonnage}),
    }
    cluster.add_ready_node("cpu-0", {"pool": "cpu"})
    agent = Agent(cluster, "cpu-0", images)
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def controllers(cluster: Cluster, installed: None) -> Iterator[Controllers]:
    """Controllers, ended after each test."""
    log = cluster.folder / "controller.log"
    log.unlink(missing_ok=True)
    controllers = Controllers(cluster)
    before = len(cluster.processes)
    yield controllers
    for process in cluster.processes[before:]:
        process.kill()
        process.wait()
    cluster.delete(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/tonnage-controller")


@pytest.fixture
def jobs(
    site: Site, installed: None, namespace: Namespace, agent: Agent, gpus: Callable[[int, int], None]
) -> Iterator[Namespace]:
    """A namespace whose pods wait for forecasts, in a cluster with two GPUs, and the webhook."""
    cluster = namespace.cluster
    gpus(1, 2)
    cluster.patch(f"/api/v1/namespaces/{namespace.name}", {"metadata": {"labels": {LABEL: "enabled"}}})
    site.more = ["--cluster-forecasts"]
    site.start("enforce")
    register_pods(site, namespace)
    yield namespace
    site.more = []
    cluster.delete(f"{REGISTRATIONS}/{SERVICE}-pods")
    cluster.clear(FORECASTS.format(namespace.name), 60)


def register_pods(site: Site, namespace: Namespace) -> None:
    """Has the API server call the webhook for pods, and waits until it does."""
    assert site.webhook is not None
    (one,) = (
        one
        for one in site.manifests.read(site.manifests.DEPLOY / "dry-runs")
        if one["metadata"]["name"] == f"{SERVICE}-pods"
    )
    authority = site.webhook.authority.certificate.read_bytes()
    one["webhooks"][0]["clientConfig"]["caBundle"] = base64.b64encode(authority).decode()
    site.manifests.apply(namespace.cluster, one)
    wait("held: a probe", lambda: gates(tried(namespace, pod("probe", ["python", "probe.py"]))), 30)


def pod(name: str, words: list[str], template: str = "gpu", **more: Any) -> Any:
    """A pod with a claim."""
    container = {"name": "job", "image": "train:1", "command": words, "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": template}]
    return {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": claims, **more}}


def gates(pod: Any) -> list[str]:
    """The gates that a pod waits for."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]


def tried(jobs: Namespace, body: Any) -> Any:
    """A pod as it would be if it were created."""
    return jobs.cluster.request("POST", f"{jobs.pods}?dryRun=All", body).body


def create(jobs: Namespace, name: str, words: list[str], **more: Any) -> Any:
    """Creates a pod; what it is then."""
    return jobs.cluster.create(jobs.pods, pod(name, words, **more)).body


def forecasts(jobs: Namespace) -> list[Any]:
    """The forecasts of a namespace."""
    return jobs.cluster.items(FORECASTS.format(jobs.name))


def number_of(image: Path, words: list[str]) -> str:
    """The output of `tonnage forecast make` at a terminal, as a claim requests it."""
    environment = {**os.environ, "PATH": f"{Path(os.environ['TORCH_PYTHON']).parent}:{os.environ['PATH']}"}
    command = [os.environ["TONNAGE"], "forecast", "make", "--json", "--gpu", "h100-80gb", "--", *words]
    made = subprocess.run(command, cwd=image, env=environment, check=True, capture_output=True)
    return f"{-(-json.loads(made.stdout)['roles'][0]['bound'] // MIB)}Mi"


def test_a_job_that_nobody_has_forecast_is_held_run_dry_and_filled(
    jobs: Namespace, controllers: Controllers, agent: Agent, image: Path
) -> None:
    words = ["python", "train.py", "4096", "0"]
    assert gates(create(jobs, "first", words)) == [GATE]
    # Without the controller it waits, and its claim is refused with the reason.
    said = wait("refused: the claim", lambda: jobs.events("first", "FailedResourceClaimCreation"))
    assert "a dry run is finding out what the job takes; the pod waits for it" in said[0]
    assert jobs.claim("first") is None
    controllers.start()
    wait("placed: the job", lambda: "first" in jobs.placed(), 120)
    (forecast,) = forecasts(jobs)
    status = forecast["status"]
    assert (forecast["spec"]["gpu"], status["phase"]) == ("h100-80gb", "Ready")
    assert forecast["spec"]["command"] == words and "it takes at most" in status["message"]
    assert written(jobs.claim("first")) == status["memory"] == number_of(image, words)
    # The second such job waits for nothing, and nothing is run for it.
    assert gates(create(jobs, "second", words)) == []
    wait("placed: the second", lambda: "second" in jobs.placed(), 30)
    assert written(jobs.claim("second")) == status["memory"]
    assert controllers.done("start the dry run") == 1
    # Other words are another job, and so are other variables.
    another = pod("another", words)
    another["spec"]["containers"][0]["env"] = [{"name": "BATCH", "value": "64"}]
    assert gates(tried(jobs, another)) == [GATE]
    assert gates(create(jobs, "other", ["python", "train.py", "2048", "0"])) == [GATE]


def test_a_job_whose_dry_run_fails_gets_a_whole_gpu_and_the_reason(jobs: Namespace, controllers: Controllers) -> None:
    controllers.start()
    create(jobs, "failing", ["python", "fail.py"])
    wait("placed: the job", lambda: "failing" in jobs.placed(), 120)
    (forecast,) = forecasts(jobs)
    assert forecast["status"]["phase"] == "Failed" and "RuntimeError" in forecast["status"]["message"]
    claim = jobs.claim("failing")
    assert written(claim) == f"{GPU_MIB}Mi"
    assert "RuntimeError" in claim["metadata"]["annotations"]["tonnage.dev/message"]
    # It is not tried again for each pod that comes.
    assert gates(create(jobs, "again", ["python", "fail.py"])) == []


def test_pods_that_need_no_forecast_do_not_wait(jobs: Namespace, site: Site, cluster: Cluster) -> None:
    words = ["python", "train.py", "1024", "0"]
    jobs.template("asked", "20Gi")
    assert gates(create(jobs, "asked", words, template="asked")) == []
    jobs.template("everything", allocationMode="All")
    assert gates(create(jobs, "all", words, template="everything")) == []
    # Nor do those of a namespace that was not labelled, and those that the folder of forecasts knows.
    other = Namespace(cluster, f"{jobs.name[:40]}-other")
    other.template("gpu")
    assert gates(create(other, "unlabelled", words)) == []
    other.clear()
    known = ["python", "train.py", "--known"]
    site.forecast(known, 20_000)
    wait("not held", lambda: not gates(tried(jobs, pod("known", known))), 20)
    # One that waits for something else as well waits for both.
    assert gates(create(jobs, "both", words, schedulingGates=[{"name": "a.example/b"}])) == ["a.example/b", GATE]


@pytest.mark.large
def test_a_dry_run_that_takes_too_long_is_ended(jobs: Namespace, controllers: Controllers) -> None:
    controllers.start("--dry-run-seconds", "10")
    create(jobs, "slow", ["python", "train.py", "64", "600"])
    wait("placed: the job", lambda: "slow" in jobs.placed(), 120)
    (forecast,) = forecasts(jobs)
    assert forecast["status"]["message"] == "the dry run was ended after 10 seconds"
    assert written(jobs.claim("slow")) == f"{GPU_MIB}Mi"


def test_of_two_controllers_one_works_and_the_other_takes_its_place(jobs: Namespace, controllers: Controllers) -> None:
    first = controllers.start()
    wait("led", lambda: any(line["event"] == "leads" for line in controllers.lines()), 30)
    controllers.start()
    create(jobs, "one", ["python", "train.py", "512", "0"])
    wait("started", lambda: controllers.done("start the dry run") == 1)
    first.kill()
    first.wait()
    wait("placed: the job", lambda: "one" in jobs.placed(), 120)
    assert controllers.done("start the dry run") == 1
    assert controllers.done("open the gate of pod") == 1


@pytest.mark.large
def test_killed_at_ten_random_points_it_is_right_in_the_end(
    jobs: Namespace, controllers: Controllers, image: Path
) -> None:
    seed = int(os.environ.get("SEED", "17"))
    chance = random.Random(seed)
    names = [f"job-{number}" for number in range(4)]
    seen: set[str | None] = set()
    is_over = threading.Event()

    def watch_claims() -> None:
        while not is_over.is_set():
            try:
                seen.update(written(claim) for claim in jobs.all_claims())
            except OSError:
                return
            time.sleep(0.05)

    watcher = threading.Thread(target=watch_claims, daemon=True)
    watcher.start()
    for number, name in enumerate(names):
        create(jobs, name, ["python", "train.py", str(1024 * (number + 1)), "1"])
    kills = 0
    while kills < 10:
        controllers.start()
        # It begins when the Lease of the one before has run out; then at any point of its work.
        time.sleep(chance.uniform(0, 6))
        controllers.kill()
        kills += 1
    controllers.start()
    wait("placed: all", lambda: set(names) <= set(jobs.placed()), 300)
    is_over.set()
    watcher.join()
    assert seen
    expected = {
        name: number_of(image, ["python", "train.py", str(1024 * (number + 1)), "1"])
        for number, name in enumerate(names)
    }
    assert {name: written(jobs.claim(name)) for name in names} == expected
    # No claim was ever there without its number.
    assert seen <= set(expected.values())
    assert controllers.done("open the gate of pod") <= len(names)
    steps = [line["step"] for line in controllers.lines() if line["event"] == "done"]
    print(f"seed {seed}: {kills} kills, {len(steps)} steps, {controllers.done('start the dry run')} dry runs started")
