# SPDX-License-Identifier: MIT OR Apache-2.0
"""The webhook with a real API server, scheduler and controller manager of Kubernetes.

It runs with the token of the service account of deploy/kubernetes, so that what it may read is what the manifests give
it, and the API server finds it by the service, the certificate and the registration of the manifests. Forecasts are put
into its store. docs/guides/kubernetes.md has the commands.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cluster import DRA, DRIVER, REGISTRATIONS, Cluster, Namespace, allocated, claim_spec, written
from conftest import GPU_MIB, SERVICE, SYSTEM, Site, memory_of
from webhook import Authority, Webhook, wait

SMALL, MEDIUM, HUGE = 28_147, 32_705, 1_068_716
Gpus = Callable[[int, int], None]


def words(name: str) -> list[str]:
    """A command with its own forecast."""
    return ["python", "train.py", f"--job={name}"]


def message(claim: Any) -> str:
    """The message of the webhook about a claim."""
    return str(claim["metadata"].get("annotations", {}).get("tonnage.dev/message", ""))


def counts(claims: Iterable[Any]) -> dict[str | None, int]:
    """How many claims request how much."""
    found: dict[str | None, int] = {}
    for claim in claims:
        found[written(claim)] = found.get(written(claim), 0) + 1
    return found


def test_a_claim_without_a_number_is_filled_and_charged(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 1)
    name = site.forecast(words("filled"), SMALL)
    site.start("fill")
    # The same program in another folder is the same job.
    namespace.pod("job", ["/usr/bin/python3.12", *words("filled")[1:]])
    wait("placed: the job", namespace.placed)
    claim = namespace.claim("job")
    assert written(claim) == f"{SMALL}Mi"
    assert allocated(claim) == [("node-0/gpu-0", f"{SMALL}Mi")]
    assert claim["metadata"]["annotations"]["tonnage.dev/forecast"] == name
    assert "requests 27.49 GiB of each GPU" in message(claim)


def test_six_jobs_run_on_three_gpus_where_three_do_without(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(3, 1)
    sizes = {f"job-{number}": MEDIUM if number > 3 else SMALL for number in range(6)}
    for name, size in sizes.items():
        site.forecast(words(name), size)
        namespace.pod(name, words(name))
    # Kubernetes as it comes: a claim without a number is a whole GPU.
    wait("placed or waiting: all", lambda: len(namespace.placed()) + len(namespace.waiting()) == 6)
    assert len(namespace.placed()) == 3
    assert all(
        charge == f"{GPU_MIB}Mi" for name in namespace.placed() for _, charge in allocated(namespace.claim(name))
    )
    namespace.clear()
    site.start("fill")
    for name in sizes:
        namespace.pod(name, words(name))
    wait("placed: all", lambda: len(namespace.placed()) == 6)
    charged: dict[str, int] = {}
    for name, size in sizes.items():
        ((device, charge),) = allocated(namespace.claim(name))
        assert charge == f"{size}Mi"
        charged[device] = charged.get(device, 0) + size
    assert len(charged) == 3 and max(charged.values()) <= GPU_MIB


def test_what_no_gpu_holds_is_refused_with_the_reason(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 2)
    site.forecast(words("huge"), HUGE)
    site.start("fill")
    namespace.pod("huge", words("huge"))
    (said, *_) = wait("refused: the claim", lambda: namespace.events("huge", "FailedResourceClaimCreation"))
    assert 'admission webhook "claims.tonnage.dev" denied the request: tonnage: the job does not fit' in said
    assert namespace.claim("huge") is None and not namespace.placed()
    # A claim that requests it by hand is answered at once.
    claim = {"metadata": {"name": "hand"}, "spec": claim_spec("96Gi")}
    answer = namespace.cluster.request("POST", namespace.claims, claim)
    assert answer.status == 403 and answer.body["reason"] == "Forbidden"
    assert "the job requests 96.00 GiB of one GPU, the largest has 79.65 GiB: it would never start" in answer.message
    # A GPU that is larger, which comes later, is known without a restart: the same claim is taken then.
    large = {"memory": {"value": "143771Mi"}}
    pool = {"name": "large", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "allNodes": True, "pool": pool, "devices": [{"name": "gpu-0", "capacity": large}]}
    namespace.cluster.create(f"{DRA}/resourceslices", {"metadata": {"name": "large"}, "spec": spec})
    wait("taken: the claim", lambda: namespace.cluster.request("POST", namespace.claims, claim).status == 201, 20)


def test_advise_only_says(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(2, 1)
    site.forecast(words("advised"), SMALL)
    site.forecast(words("huge"), HUGE)
    namespace.template("little", "1Gi")
    site.start("advise")
    namespace.pod("advised", words("advised"))
    namespace.pod("huge", words("huge"))
    wait("placed: both", lambda: len(namespace.placed()) == 2)
    assert written(namespace.claim("advised")) is None and written(namespace.claim("huge")) is None
    assert "the job needs 27.49 GiB of each GPU" in message(namespace.claim("advised"))
    assert "the job does not fit" in message(namespace.claim("huge"))
    namespace.pod("little", words("advised"), "little")
    claim = wait("made: the claim", lambda: namespace.claim("little"))
    assert written(claim) == "1Gi" and "may take 27.49 GiB" in message(claim)
    # At a terminal it is a warning.
    hand = {"metadata": {"name": "hand"}, "spec": claim_spec("96Gi")}
    answer = namespace.cluster.request("POST", namespace.claims, hand)
    assert answer.status == 201 and len(answer.warnings) == 1
    assert "tonnage: the job requests 96.00 GiB of one GPU" in answer.warnings[0]


def test_enforce_refuses_too_little_and_gives_whole_gpus(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(2, 1)
    name = site.forecast(words("enforced"), SMALL)
    site.forecast(["sh", "run.sh"], MEDIUM, None)
    namespace.template("little", "20Gi")
    namespace.template("enough", "30Gi")
    site.start("enforce")
    namespace.pod("little", words("enforced"), "little")
    (said, *_) = wait("refused: the claim", lambda: namespace.events("little", "FailedResourceClaimCreation"))
    assert "tonnage: the job requests 20.00 GiB of each GPU and may take 27.49 GiB" in said
    namespace.pod("enough", words("enforced"), "enough")
    namespace.pod("filled", words("enforced"))
    # The words alone do not identify the job, nor do they with the forecast of other words.
    namespace.pod("unknown", ["sh", "run.sh"], **{"tonnage.dev/forecast": name})
    wait("placed: three", lambda: len(namespace.placed()) == 3)
    assert written(namespace.claim("enough")) == "30Gi"
    assert written(namespace.claim("filled")) == f"{SMALL}Mi"
    assert written(namespace.claim("unknown")) == f"{GPU_MIB}Mi"
    assert "no forecast of this job" in message(namespace.claim("unknown"))
    assert namespace.claim("little") is None


def test_first_fit_strands_what_a_pin_does_not(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 2)
    jobs = {"a": 39, "b": 49, "c": 30, "d": 39}
    for name, gib in jobs.items():
        site.forecast(words(name), gib * 1024)
    uuid = f'device.attributes["{DRIVER}"].uuid == "GPU-0-1"'
    namespace.template("pinned", selectors=[{"cel": {"expression": uuid}}])
    site.start("fill")

    def submit(pinned: str) -> None:
        for number, name in enumerate(jobs):
            namespace.pod(name, words(name), "pinned" if name == pinned else "gpu")
            wait("decided: a job", lambda n=number: len(namespace.placed()) + len(namespace.waiting()) > n)

    submit("")
    # The scheduler takes the first GPU with room.
    assert sorted(namespace.placed()) == ["a", "b", "c"] and list(namespace.waiting()) == ["d"]
    namespace.clear()
    # A claim with a selector is filled like another.
    submit("c")
    wait("placed: all", lambda: len(namespace.placed()) == 4)
    assert {name: written(namespace.claim(name)) for name in jobs} == {name: f"{gib}Gi" for name, gib in jobs.items()}


def test_the_manifests_are_taken_and_give_no_more_than_is_needed(site: Site, namespace: Namespace) -> None:
    cluster = namespace.cluster
    for mode in ("advise", "fill", "enforce"):
        objects = site.manifests.read(site.manifests.DEPLOY / mode)
        (deployment,) = (one for one in objects if one["kind"] == "Deployment")
        environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "TONNAGE_MODE", "value": mode} in environment
        for one in objects:
            site.manifests.apply(cluster, one)
    # Its pods are made although the namespace is restricted: they wait for the volume of forecasts.
    pods = f"/api/v1/namespaces/{SYSTEM}/pods"
    wait("made: two pods", lambda: len(cluster.items(pods)) >= 2)
    token = cluster.token(SYSTEM, SERVICE)
    for path in ("/api/v1/pods", f"{DRA}/resourceslices", "/api/v1/namespaces/default/pods/nobody"):
        assert cluster.request("GET", path, token=token).status in (200, 404), path
    secrets, claims = "/api/v1/secrets", f"{DRA}/resourceclaims"
    for path in (secrets, claims, "/api/v1/nodes", "/api/v1/configmaps", "/api/v1/namespaces"):
        assert cluster.request("GET", path, token=token).status == 403, path
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    assert cluster.request("POST", namespace.pods, pod, token=token).status == 403
    claim = {"metadata": {"name": "c"}, "spec": claim_spec()}
    assert cluster.request("POST", namespace.claims, claim, token=token).status == 403
    assert cluster.request("DELETE", f"{DRA}/resourceslices", token=token).status == 403


def test_the_example_of_a_watched_job_is_taken_and_its_pod_is_made(site: Site, namespace: Namespace) -> None:
    (job,) = site.manifests.read(site.manifests.DEPLOY / "watch")
    job["metadata"]["namespace"] = namespace.name
    site.manifests.apply(namespace.cluster, job)
    (pod,) = wait("made: its pod", lambda: namespace.cluster.items(namespace.pods))
    side_car = pod["spec"]["initContainers"][1]
    assert side_car["restartPolicy"] == "Always"
    assert side_car["command"][1:3] == ["fleet", "watch"]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_it_is_installed_by_the_commands_of_the_guide(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 1)
    cluster = namespace.cluster
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig("admin"))}
    deploy = site.manifests.DEPLOY
    webhook = site.new()
    # Twice, as when a certificate is renewed: the authority of before stays trusted.
    for _ in range(2):
        for command in (["kubectl", "apply", "-k", str(deploy / "fill")], [str(deploy / "certificates.sh"), "2"]):
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    secret = cluster.get(f"/api/v1/namespaces/{SYSTEM}/secrets/tonnage-admit-tls")["data"]
    webhook.certificate.write_bytes(base64.b64decode(secret["tls.crt"]))
    webhook.key.write_bytes(base64.b64decode(secret["tls.key"]))
    registration = cluster.get(f"{REGISTRATIONS}/{SERVICE}")
    bundle = base64.b64decode(registration["webhooks"][0]["clientConfig"]["caBundle"])
    assert bundle.count(b"BEGIN CERTIFICATE") == 2
    site.webhook = webhook
    webhook.launch("fill")
    wait("asked: the webhook", site.is_asked)


def test_without_its_role_it_is_not_ready_and_says_why(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 1)
    cluster = namespace.cluster
    binding = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{SERVICE}"
    cluster.delete(binding)
    one = site.new()
    try:
        # A permission is kept for a moment.
        token = cluster.tokens["webhook"]
        wait("forbidden: pods", lambda: cluster.request("GET", "/api/v1/pods", token=token).status == 403)
        with pytest.raises(AssertionError, match="not ready"):
            one.start("enforce", 3)
        said = [line["message"] for line in one.lines() if line["event"] == "watch failed"]
        account = f"system:serviceaccount:{SYSTEM}:{SERVICE}"
        assert any("403" in line and f'User "{account}" cannot list resource "pods"' in line for line in said), said
    finally:
        for manifest in site.manifests.read(site.manifests.DEPLOY / "base"):
            if manifest["kind"] == "ClusterRoleBinding":
                site.manifests.apply(cluster, manifest)
    wait("ready: the webhook", lambda: one.get("/readyz") == 200, 40)
    assert one.stop() == 0


def test_certificates_are_changed_without_a_restart(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 2)
    site.forecast(words("before"), SMALL)
    webhook = site.start("enforce")
    assert webhook.process is not None
    namespace.pod("before", words("before"))
    wait("placed: the first", lambda: len(namespace.placed()) == 1)
    # As certificates.sh: first both authorities are trusted, then the files change, then the old one goes.
    old, new = webhook.authority, Authority(namespace.cluster.folder / "renewed", "renewed")
    both = new.certificate.read_bytes() + old.certificate.read_bytes()
    site.register("enforce", both)
    certificate, key = new.sign("renewed", (f"{SERVICE}.{SYSTEM}.svc",))
    webhook.key.write_bytes(key.read_bytes())
    webhook.certificate.write_bytes(certificate.read_bytes())
    wait("changed", lambda: any(line["event"] == "certificates changed" for line in webhook.lines()), 20)
    webhook.authority = new
    site.register("enforce", new.certificate.read_bytes())
    namespace.pod("after", words("before"))
    wait("placed: the second", lambda: len(namespace.placed()) == 2)
    assert written(namespace.claim("after")) == f"{SMALL}Mi"
    assert webhook.process.poll() is None
    # A certificate of another authority is not trusted, and enforce lets nothing through.
    stranger = Authority(namespace.cluster.folder / "stranger", "stranger")
    with pytest.raises(AssertionError, match="not asked"):
        site.register("enforce", stranger.certificate.read_bytes(), seconds=3)
    claim = {"metadata": {"name": "hand"}, "spec": claim_spec("20Gi")}
    answer = namespace.cluster.request("POST", namespace.claims, claim)
    assert answer.status == 500 and "certificate" in answer.message


def test_claims_of_an_older_version_are_filled_too(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 1)
    site.start("enforce")
    path = f"/apis/resource.k8s.io/v1beta2/namespaces/{namespace.name}/resourceclaims"
    namespace.cluster.create(path, {"metadata": {"name": "old"}, "spec": claim_spec()})
    claim = namespace.cluster.get(f"{namespace.claims}/old")
    assert written(claim) == f"{GPU_MIB}Mi"
    assert "the claim belongs to no pod" in message(claim)


def test_every_kind_of_request_is_one_that_the_api_server_takes(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 1)
    site.start("enforce")
    one = {"name": "one", "deviceClassName": DRIVER}
    alternatives = [one, {**one, "name": "two", "capacity": {"requests": {"other": "1"}}}]
    requests = [
        {"name": "a", "firstAvailable": alternatives},
        {"name": "b", "exactly": {"deviceClassName": DRIVER, "count": 2, "capacity": {}}},
        {"name": "c", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}},
        {"name": "d", "exactly": {"deviceClassName": "other.example.com"}},
        {"name": "e", "exactly": {"deviceClassName": DRIVER, "capacity": {"requests": {f"{DRIVER}/memory": "9Gi"}}}},
    ]
    body = {"metadata": {"name": "many"}, "spec": {"devices": {"requests": requests}}}
    answer = namespace.cluster.create(namespace.claims, body)
    spec = namespace.cluster.get(f"{namespace.claims}/many")["spec"]["devices"]["requests"]
    memory = {"requests": {"memory": f"{GPU_MIB}Mi"}}
    assert [one.get("capacity") for one in spec[0]["firstAvailable"]] == [
        memory,
        {"requests": {"memory": f"{GPU_MIB}Mi", "other": "1"}},
    ]
    assert [one["exactly"].get("capacity") for one in spec[1:]] == [
        memory,
        None,
        None,
        {"requests": {f"{DRIVER}/memory": "9Gi"}},
    ]
    assert any("no forecast of this job" in warning for warning in answer.warnings)


def test_it_goes_on_when_the_api_server_has_restarted(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 2)
    site.forecast(words("restart"), SMALL)
    webhook = site.start("enforce")
    cluster = namespace.cluster
    (server,) = (one for one in cluster.processes if one.poll() is None and "kube-apiserver" in str(one.args))
    server.kill()
    server.wait()
    wait("noticed", lambda: any(line["event"] == "watch failed" for line in webhook.lines()), 20)
    cluster.start_api_server()
    wait("asked: the webhook", site.is_asked, 60)
    namespace.pod("after", words("restart"))
    wait("placed: the job", namespace.placed, 120)
    assert written(namespace.claim("after")) == f"{SMALL}Mi"
    # Watches come back by themselves: the number of GPUs is not remembered, it is seen.
    cluster.delete(f"{DRA}/resourceslices")
    claim = {"metadata": {"name": "hand"}, "spec": claim_spec("20Gi")}
    path = f"{namespace.claims}?dryRun=All"
    wait("seen: that no GPU is left", lambda: "told its memory" in cluster.request("POST", path, claim).message)


@pytest.mark.large
def test_a_quiet_cluster_is_no_failure(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    gpus(1, 1)
    webhook = site.start("fill")
    # Longer than the webhook waits for an event of the API server, which sends nothing about GPUs that stay as they
    # are.
    time.sleep(170)
    assert [line for line in webhook.lines() if line["event"] == "watch failed"] == []
    # They are still watched.
    namespace.cluster.remove_nodes()
    claim = {"metadata": {"name": "hand"}, "spec": claim_spec("96Gi")}
    path = f"{namespace.claims}?dryRun=All"
    wait(
        "seen: that no GPU is left",
        lambda: "would never start" not in namespace.cluster.request("POST", path, claim).message,
    )


def create_pods(namespace: Namespace, count: int, name: str = "job", template: str = "gpu") -> threading.Thread:
    """Begins to create many pods of one job."""

    def create() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: namespace.pod(f"{name}-{number}", words("many"), template), range(count)))

    thread = threading.Thread(target=create)
    thread.start()
    return thread


@pytest.mark.large
@pytest.mark.parametrize("mode", ["fill", "enforce"])
def test_killed_amid_500_pods_it_loses_nothing(site: Site, namespace: Namespace, gpus: Gpus, mode: str) -> None:
    gpus(32, 8)
    site.forecast(words("many"), SMALL)
    webhook = site.start(mode)
    creating = create_pods(namespace, 500)
    wait("made: some claims", lambda: len(namespace.all_claims()) > 100)
    webhook.kill()
    wait("refused at its port", lambda: not answers(webhook))
    if mode == "fill":
        # The API server goes on without it: claims have no number.
        wait("made: claims without a number", lambda: counts(namespace.all_claims()).get(None, 0) > 50)
    else:
        creating.join()
        time.sleep(3)
    webhook.start(mode)
    creating.join()
    wait("made: all claims", lambda: len(namespace.all_claims()) == 500, 300)
    found = counts(namespace.all_claims())
    print(f"{mode}: claims by what they ask for: {found}")
    owners = {claim["metadata"]["ownerReferences"][0]["name"] for claim in namespace.all_claims()}
    assert len(owners) == 500
    if mode == "fill":
        assert set(found) == {None, f"{SMALL}Mi"} and found[f"{SMALL}Mi"] > 100
        # Each without a number takes a whole GPU, two with a number share one: more run than there are GPUs.
        wait("decided: all", lambda: len(namespace.placed()) + len(namespace.waiting()) == 500, 300)
        assert len(namespace.placed()) > 256
        charged: dict[str, int] = {}
        for device, charge in (one for claim in namespace.all_claims() for one in allocated(claim)):
            charged[device] = charged.get(device, 0) + int(charge.removesuffix("Mi"))
        assert max(charged.values()) <= GPU_MIB
    else:
        # No claim was made without it, and those that were refused meanwhile were made later.
        assert found == {f"{SMALL}Mi": 500}
        wait("placed: all", lambda: len(namespace.placed()) == 500, 300)


def answers(webhook: Webhook) -> bool:
    """Whether a process listens at the webhook's port."""
    try:
        http.client.HTTPConnection("127.0.0.1", webhook.port, timeout=1).connect()
    except OSError:
        return False
    return True


@pytest.mark.large
def test_a_rolling_update_leaves_no_claim_without_its_number(site: Site, namespace: Namespace) -> None:
    slices(namespace.cluster, 1, 8)
    site.forecast(words("many"), SMALL)
    first, second = site.start("fill"), site.new()
    # Both have the certificate of the secret.
    second.authority, second.certificate, second.key = first.authority, first.certificate, first.key
    first.stop()
    first.start("fill", delay=1)
    second.start("fill", delay=1)
    wait("asked: the webhook", site.is_asked)
    creating = create_pods(namespace, 1000)
    wait("made: some claims", lambda: len(namespace.all_claims()) > 50)
    # As Kubernetes does: the signal goes out, and the service leads to those that are ready.
    assert first.process is not None
    first.process.terminate()
    wait("not ready: the first", lambda: first.get("/readyz") != 200, 5)
    site.webhook = second
    assert first.process.wait(30) == 0
    before = len(namespace.all_claims())
    creating.join()
    wait("made: all claims", lambda: len(namespace.all_claims()) == 1000, 300)
    assert counts(namespace.all_claims()) == {f"{SMALL}Mi": 1000}
    # Both had a part of it.
    assert before < 1000 and all(any(line["event"] == "allowed" for line in one.lines()) for one in (first, second))


def slices(cluster: Cluster, count: int, gpus: int) -> None:
    """GPUs of nodes that are not there: nothing is placed on them."""
    device = {"memory": {"value": f"{GPU_MIB}Mi"}}
    attributes = {"productName": {"string": "NVIDIA H100 80GB HBM3"}}

    def create(number: int) -> None:
        name = f"fleet-{number}"
        devices = [{"name": f"gpu-{gpu}", "capacity": device, "attributes": attributes} for gpu in range(gpus)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        cluster.create(f"{DRA}/resourceslices", {"metadata": {"name": name}, "spec": spec})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(count)))


def percentiles(values: list[float]) -> str:
    """In milliseconds."""
    values = sorted(values)
    half, most = values[len(values) // 2], values[len(values) * 99 // 100]
    return f"p50 {half:.2f} ms, p99 {most:.2f} ms, most {values[-1]:.2f} ms of {len(values)}"


@pytest.mark.large
def test_latency_with_10000_gpus(site: Site, namespace: Namespace, cluster: Cluster) -> None:
    site.forecast(words("many"), SMALL)
    slices(cluster, 1250, 8)
    webhook = site.start("fill")
    assert webhook.process is not None
    # Without the proxy of the tests between both.
    url = f"https://127.0.0.1:{webhook.port}/claims"
    site.register("fill", webhook.authority.certificate.read_bytes(), url)
    before = durations(cluster)
    create_pods(namespace, 1000).join()
    wait("made: all claims", lambda: len(namespace.all_claims()) == 1000, 300)
    # Every one in time: the API server goes on without the webhook after 5 s.
    assert counts(namespace.all_claims()) == {f"{SMALL}Mi": 1000}
    own = [line["microseconds"] / 1000 for line in webhook.lines() if line.get("namespace") == namespace.name]
    print(f"\n1,000 pods at once: the webhook's own time: {percentiles(own)}")
    calls, seconds = (after - earlier for after, earlier in zip(durations(cluster), before, strict=True))
    print(f"the API server's time for a call: mean {seconds / calls * 1000:.2f} ms of {calls:.0f}")
    claim = namespace.all_claims()[0]
    seen = asked(webhook, claim, 2000)
    print(f"one after the other, a client's time for a call: {percentiles(seen)}")
    with_it = created(namespace, claim, 500)
    print(f"one after the other, creation of a claim with the webhook: {percentiles(with_it)}")
    print(f"memory of the webhook: {memory_of(webhook.process) / 1024:.1f} MiB")
    site.stop()
    print(f"one after the other, creation of a claim without it: {percentiles(created(namespace, claim, 500))}")
    # Generous: a busy machine of two cores.
    assert sorted(seen)[1000] < 100 and sorted(with_it)[250] < 500


@pytest.mark.large
def test_throughput_beside_the_scheduler_alone(site: Site, namespace: Namespace, gpus: Gpus) -> None:
    """The same claims twice: with the number in their template and no webhook, and with the webhook that writes it."""
    gpus(1250, 8)
    site.forecast(words("many"), SMALL)
    namespace.template("written", f"{SMALL}Mi")
    rates: dict[str, list[float]] = {"gpu": [], "written": []}
    for number in range(4):
        template = "gpu" if number % 2 else "written"
        if template == "gpu":
            site.start("fill")
        began = time.monotonic()
        create_pods(namespace, 1000, f"{template}-{number}", template).join()
        wait("placed: all", lambda: not unplaced(namespace), 600)
        rates[template].append(1000 / (time.monotonic() - began))
        site.stop()
    assert counts(namespace.all_claims()) == {f"{SMALL}Mi": 4000}
    alone, beside = (sum(rates[template]) / 2 for template in ("written", "gpu"))
    print(f"\npods placed a second: alone {rates['written']}, with the webhook {rates['gpu']}")
    print(f"ratio of the means: {beside / alone:.3f}")
    # Generous: a busy machine of two cores.
    assert beside > alone / 2


def unplaced(namespace: Namespace) -> list[Any]:
    """A pod without a node, if there is one."""
    return namespace.cluster.items(f"{namespace.pods}?limit=1&fieldSelector=spec.nodeName%3D")


def created(namespace: Namespace, claim: Any, count: int) -> list[float]:
    """Milliseconds in which the API server creates claims of a pod, one after the other, but for storing them."""
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    keep = {name: claim["metadata"][name] for name in ("generateName", "annotations", "ownerReferences")}
    body = {"metadata": keep, "spec": {"devices": {"requests": [request]}}}
    times = []
    for _ in range(count):
        began = time.monotonic()
        answer = namespace.cluster.request("POST", f"{namespace.claims}?dryRun=All", body)
        times.append((time.monotonic() - began) * 1000)
        assert answer.status == 201, answer
    return times


def durations(cluster: Cluster) -> tuple[float, float]:
    """How often the API server has called the webhook, and how long that took together."""
    found = {"count": 0.0, "sum": 0.0}
    for line in cluster.request("GET", "/metrics").message.splitlines():
        for end in found:
            if line.startswith(f"apiserver_admission_webhook_admission_duration_seconds_{end}{{") and "tonnage" in line:
                found[end] += float(line.split()[-1])
    return found["count"], found["sum"]


def asked(webhook: Webhook, claim: Any, count: int) -> list[float]:
    """Milliseconds of reviews, one after the other."""
    claim = json.loads(json.dumps(claim))
    claim["spec"]["devices"]["requests"][0]["exactly"].pop("capacity")
    request = {"uid": "u", "kind": {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}}
    request |= {"operation": "CREATE", "namespace": claim["metadata"]["namespace"], "object": claim}
    review = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    context = ssl.create_default_context(cafile=str(webhook.authority.certificate))
    connection = http.client.HTTPSConnection("127.0.0.1", webhook.port, context=context, timeout=20)
    times = []
    for _ in range(count):
        began = time.monotonic()
        connection.request("POST", "/claims", review, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())["response"]
        times.append((time.monotonic() - began) * 1000)
    assert b"28147Mi" in base64.b64decode(answer["patch"])
    connection.close()
    return times
