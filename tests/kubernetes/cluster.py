# SPDX-License-Identifier: MIT OR Apache-2.0
"""A real control plane of Kubernetes on this machine: etcd, API server, scheduler and controller manager.

There is no kubelet. Nodes and the slices of their GPUs are posted as a kubelet and a driver would post them; a pod is
placed when the scheduler has written a node into it. Services lead nowhere without kube-proxy, so the API server calls
the webhook through a proxy ("egress selector"), which is here; manifests stay as they are.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webhook import Authority, free_port, openssl, wait

DRA = "/apis/resource.k8s.io/v1"
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DRIVER = "gpu.nvidia.com"
# An H100 as NVIDIA's driver reports it.
PRODUCT, MEMORY = "NVIDIA H100 80GB HBM3", "81559Mi"
# Controllers that a pod with a claim needs, a Deployment and a Job. Without a kubelet, others would evict pods.
CONTROLLERS = (
    "resourceclaim-controller,serviceaccount-controller,garbage-collector-controller,namespace-controller,"
    "deployment-controller,replicaset-controller,job-controller"
)


@dataclass
class Answer:
    """The answer of the API server."""

    status: int
    body: Any
    warnings: list[str]

    @property
    def message(self) -> str:
        """The reason, if it refuses."""
        return str(self.body.get("message", ""))


class Egress(threading.Thread):
    """Takes the API server's connections to services, and leads each to a port of this machine."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        # By the address of the service; who picks a port may look which of several is ready.
        self.routes: dict[str, Callable[[], int]] = {}
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen(128)

    def run(self) -> None:
        """Until the socket is closed."""
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.lead, args=(connection,), daemon=True).start()

    def lead(self, connection: socket.socket) -> None:
        """One connection."""
        head = b""
        while not head.endswith(b"\r\n\r\n") and len(head) < 4096:
            byte = connection.recv(1)
            if not byte:
                break
            head += byte
        words = head.split()
        route = self.routes.get(words[1].decode()) if len(words) > 1 and words[0] == b"CONNECT" else None
        try:
            if route is None:
                raise OSError("no such service")
            other = socket.create_connection(("127.0.0.1", route()), timeout=5)
        except OSError:
            connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            connection.close()
            return
        other.settimeout(None)
        # Pieces go on as they come, as from the API server itself.
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        back = threading.Thread(target=copy, args=(other, connection), daemon=True)
        back.start()
        copy(connection, other)
        back.join()
        connection.close()
        other.close()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copies bytes until one side ends."""
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    except OSError:
        pass
    for one in (source, target):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Cluster:
    """A control plane in a folder."""

    def __init__(self, folder: Path, controlplane: Path) -> None:
        self.folder, self.controlplane = folder, controlplane
        self.port, self.etcd = free_port(), free_port()
        self.tokens = {name: os.urandom(16).hex() for name in ("admin", "controllers", "scheduler")}
        self.authority = Authority(folder / "pki", "tests")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.egress = Egress(folder / "egress.sock")
        self.local = threading.local()
        # With this word before it, a program ends with the process that started it, however that ends.
        setpriv = shutil.which("setpriv")
        self.before = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []

    def start(self) -> None:
        """Starts everything and waits until it is ready."""
        self.egress.start()
        peer = free_port()
        etcd = ["etcd", "--data-dir", str(self.folder / "etcd"), "--log-level", "warn"]
        etcd += [
            "--listen-client-urls",
            f"http://127.0.0.1:{self.etcd}",
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer}",
        ]
        etcd += ["--advertise-client-urls", f"http://127.0.0.1:{self.etcd}"]
        self.run("etcd", etcd)
        wait("ready: etcd", lambda: answers(self.etcd))
        self.start_api_server()
        self.start_others()
        # Controllers make it, so they work.
        wait("there: the default account", lambda: self.get("/api/v1/namespaces/default/serviceaccounts/default"))
        selector = f'device.driver == "{DRIVER}"'
        self.create(
            f"{DRA}/deviceclasses",
            {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": selector}}]}},
        )

    def start_api_server(self) -> subprocess.Popen[bytes]:
        """Starts the API server, also for a second time."""
        pki = self.authority.folder
        key, public = pki / "accounts.key", pki / "accounts.pub"
        users = pki / "users.csv"
        if not key.exists():
            self.authority.sign("apiserver")
            openssl(f"ecparam -name prime256v1 -genkey -noout -out {key}")
            openssl(f"ec -in {key} -pubout -out {public}")
            users.write_text(
                f'{self.tokens["admin"]},admin,admin,"system:masters"\n'
                f"{self.tokens['controllers']},system:kube-controller-manager,controllers\n"
                f"{self.tokens['scheduler']},system:kube-scheduler,scheduler\n"
            )
        selection = {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [
                {
                    "name": "cluster",
                    "connection": {
                        "proxyProtocol": "HTTPConnect",
                        "transport": {"uds": {"udsName": str(self.folder / "egress.sock")}},
                    },
                }
            ],
        }
        egress = self.write("egress.json", selection)
        flags = {
            "advertise-address": "127.0.0.1",
            "authorization-mode": "Node,RBAC",
            "bind-address": "127.0.0.1",
            "cert-dir": pki,
            "egress-selector-config-file": egress,
            "endpoint-reconciler-type": "none",
            "etcd-servers": f"http://127.0.0.1:{self.etcd}",
            # An older version of claims, as the driver of another release may request them.
            "runtime-config": "resource.k8s.io/v1beta2=true",
            "secure-port": self.port,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": public,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/24",
            "tls-cert-file": pki / "apiserver.crt",
            "tls-private-key-file": pki / "apiserver.key",
            "token-auth-file": users,
        }
        process = self.run("kube-apiserver", self.part("kube-apiserver", flags))
        wait("ready: the API server", lambda: self.is_ready(process), 240)
        return process

    def start_others(self) -> None:
        """Starts the scheduler and the controllers."""
        flags = {
            "controllers": CONTROLLERS,
            "kube-api-burst": 400,
            "kube-api-qps": 200,
            "kubeconfig": self.kubeconfig("controllers"),
            "leader-elect": "false",
            "secure-port": 0,
            "use-service-account-credentials": "true",
        }
        self.run("kube-controller-manager", self.part("kube-controller-manager", flags))
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig("scheduler")), "qps": 200, "burst": 400},
            "leaderElection": {"leaderElect": False},
        }
        flags = {"config": self.write("scheduler.json", settings), "secure-port": 0}
        self.run("kube-scheduler", self.part("kube-scheduler", flags))

    def part(self, name: str, flags: dict[str, Any]) -> list[str]:
        """The command of a part of the control plane."""
        return [str(self.controlplane), name, *(f"--{flag}={value}" for flag, value in flags.items())]

    def write(self, name: str, value: Any) -> Path:
        """A file of settings; JSON is YAML, too."""
        path = self.folder / name
        path.write_text(json.dumps(value))
        return path

    def kubeconfig(self, user: str) -> Path:
        """How a part of the control plane finds the API server, and who it is."""
        server = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.authority.certificate)}
        return self.write(
            f"{user}.kubeconfig",
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "tests", "cluster": server}],
                "users": [{"name": user, "user": {"token": self.tokens[user]}}],
                "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
                "current-context": "tests",
            },
        )

    def run(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program, whose output goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([*self.before, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        """The output of a program."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """Ends everything, what was started last first."""
        for process in reversed(self.processes):
            process.kill()
        for process in self.processes:
            process.wait()
        self.egress.server.close()

    def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the API server is; it must be running."""
        assert process.poll() is None, self.log("kube-apiserver")[-3000:]
        try:
            return self.request("GET", "/readyz").status == 200
        except OSError:
            return False

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "application/json",
        token: str | None = None,
    ) -> Answer:
        """Sends a request to the API server, over the connection of this thread."""
        headers = {"Authorization": f"Bearer {token or self.tokens['admin']}", "Content-Type": kind}
        text = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        for attempt in (1, 2):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                context = ssl.create_default_context(cafile=str(self.authority.certificate))
                connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)
                self.local.connection = connection
            try:
                connection.request(method, path, text, headers)
                response = connection.getresponse()
                said = response.read()
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.local.connection = None
                # A connection that was kept may have ended; a new one shows the true state.
                if attempt == 2 or isinstance(error, ConnectionRefusedError):
                    raise OSError(str(error)) from error
        warnings = [value for name, value in response.getheaders() if name.lower() == "warning"]
        try:
            return Answer(response.status, json.loads(said), warnings)
        except ValueError:
            return Answer(response.status, {"message": said.decode(errors="replace")}, warnings)

    def get(self, path: str) -> Any:
        """An object or a list; none if there is no such object."""
        answer = self.request("GET", path)
        assert answer.status in (200, 404), f"{path}: {answer}"
        return answer.body if answer.status == 200 else None

    def items(self, path: str) -> list[Any]:
        """The objects of a list."""
        return list(self.get(path)["items"])

    def create(self, path: str, body: Any) -> Answer:
        """Creates an object that the API server must take, every field of it."""
        answer = self.request("POST", f"{path}?fieldValidation=Strict", body)
        assert answer.status in (200, 201), f"{path}: {answer}"
        return answer

    def patch(self, path: str, body: Any) -> Any:
        """Changes an object."""
        answer = self.request("PATCH", path, body, "application/merge-patch+json")
        assert answer.status == 200, f"{path}: {answer}"
        return answer.body

    def delete(self, path: str) -> None:
        """Deletes an object, at once."""
        answer = self.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        assert answer.status in (200, 202, 404), f"{path}: {answer}"

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account, as a pod gets it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.create(path, {"spec": {"expirationSeconds": 3600}}).body["status"]["token"])

    def add_nodes(self, count: int, gpus: int) -> None:
        """Nodes with GPUs whose memory is shared, as NVIDIA's driver reports them with `--consumable-shares=memory`."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda node: self.add_node(node, gpus), range(count)))

    def add_node(self, number: int, gpus: int) -> None:
        """One of them."""
        name = f"node-{number}"
        self.add_ready_node(name, {})
        self.add_gpus(name, number, gpus)

    def add_ready_node(self, name: str, labels: dict[str, str]) -> None:
        """A node as a kubelet reports it, without GPUs."""
        labels = {"kubernetes.io/hostname": name, **labels}
        self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        room = {"cpu": "1000", "memory": "1000Gi", "pods": "1000"}
        ready = {"type": "Ready", "status": "True", "reason": "Tests", "message": "as a kubelet would say"}
        self.patch(
            f"/api/v1/nodes/{name}/status",
            {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}},
        )
        # A new node has a taint that a controller takes away when the kubelet is ready.
        self.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def add_gpus(self, name: str, number: int, gpus: int) -> None:
        """The GPUs of a node, as a driver reports them."""
        devices = [
            {
                "name": f"gpu-{gpu}",
                "allowMultipleAllocations": True,
                "attributes": {
                    "productName": {"string": PRODUCT},
                    "type": {"string": "gpu"},
                    "uuid": {"string": f"GPU-{number}-{gpu}"},
                },
                "capacity": {
                    "memory": {
                        "value": MEMORY,
                        "requestPolicy": {
                            "default": MEMORY,
                            "validRange": {"min": "1Mi", "max": MEMORY, "step": "1Mi"},
                        },
                    }
                },
            }
            for gpu in range(gpus)
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        self.create(
            f"{DRA}/resourceslices",
            {
                "metadata": {"name": f"{name}-{DRIVER}"},
                "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices},
            },
        )

    def remove_nodes(self) -> None:
        """All nodes and their GPUs."""
        self.clear("/api/v1/nodes", 60)
        self.clear(f"{DRA}/resourceslices", 60)

    def clear(self, path: str, seconds: float) -> None:
        """Deletes what is in a list, one by one: the API server gives up a request that takes a minute."""
        names = [one["metadata"]["name"] for one in self.items(path)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self.delete, (f"{path}/{name}" for name in names)))
        wait(f"gone: {path}", lambda: not self.items(path), seconds)


class Namespace:
    """A namespace of a test."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.pods = f"/api/v1/namespaces/{name}/pods"
        self.claims = f"{DRA}/namespaces/{name}/resourceclaims"
        cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
        wait("there: an account", lambda: cluster.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"))

    def template(self, name: str, capacity: str | None = None, **more: Any) -> None:
        """The templates that claims are made from; without a capacity as they mostly are."""
        path = f"{DRA}/namespaces/{self.name}/resourceclaimtemplates"
        self.cluster.create(path, {"metadata": {"name": name}, "spec": {"spec": claim_spec(capacity, **more)}})

    def pod(
        self, name: str, words: list[str], template: str = "gpu", image: str = "train:1", **annotations: str
    ) -> None:
        """A pod that runs these words with a claim."""
        container = {
            "name": "job",
            "image": image,
            "command": words,
            "resources": {"claims": [{"name": "gpu"}]},
        }
        spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}]}
        self.cluster.create(self.pods, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})

    def placed(self) -> dict[str, str]:
        """The nodes of pods that have one."""
        pods = self.cluster.items(self.pods)
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}

    def waiting(self) -> dict[str, str]:
        """Pods whose claims the scheduler cannot satisfy now, and its reason."""
        found = {}
        for pod in self.cluster.items(self.pods):
            for condition in pod.get("status", {}).get("conditions", []):
                said = condition.get("message", "")
                # Before, it reports that there is no claim yet.
                if condition["type"] == "PodScheduled" and "cannot allocate all claims" in said:
                    found[pod["metadata"]["name"]] = said
        return found

    def claim(self, pod: str) -> Any:
        """The claim that was made for a pod; none if there is none yet."""
        for claim in self.cluster.items(self.claims):
            if any(owner["name"] == pod for owner in claim["metadata"].get("ownerReferences", [])):
                return claim
        return None

    def all_claims(self) -> list[Any]:
        """The claims of all pods."""
        return self.cluster.items(self.claims)

    def events(self, pod: str, reason: str) -> list[str]:
        """The events of a pod."""
        events = self.cluster.items(f"/api/v1/namespaces/{self.name}/events")
        return [one["message"] for one in events if one["involvedObject"]["name"] == pod and one["reason"] == reason]

    def clear(self) -> None:
        """Ends all pods, and waits until their memory is free."""
        self.cluster.clear(self.pods, 60)
        self.cluster.clear(self.claims, 300)


def claim_spec(capacity: str | None = None, **more: Any) -> Any:
    """A claim of one GPU, or of a share."""
    request: dict[str, Any] = {"deviceClassName": DRIVER, **more}
    if capacity is not None:
        request["capacity"] = {"requests": {"memory": capacity}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}


def written(claim: Any) -> str | None:
    """The memory that a claim requests."""
    request = claim["spec"]["devices"]["requests"][0]["exactly"]
    return request.get("capacity", {}).get("requests", {}).get("memory")


def allocated(claim: Any) -> list[tuple[str, str]]:
    """The GPUs of a claim, each with what it is charged."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [(f"{one['pool']}/{one['device']}", one["consumedCapacity"]["memory"]) for one in results]


def answers(port: int) -> bool:
    """Whether etcd is healthy."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def started(folder: Path, controlplane: Path) -> Iterator[Cluster]:
    """A control plane that is surely ended."""
    cluster = Cluster(folder, controlplane)
    began = time.monotonic()
    try:
        cluster.start()
        print(f"control plane: ready after {time.monotonic() - began:.1f} s")
        yield cluster
    finally:
        cluster.stop()
