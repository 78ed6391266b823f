# SPDX-License-Identifier: MIT OR Apache-2.0
"""The webhook as a process, with a server in place of Kubernetes' API server that lists and watches on command.

    TONNAGE_ADMIT=target/debug/tonnage-admit python -m pytest tests/kubernetes/test_process.py

Needs openssl. The effect of the answers on a real API server is not shown here.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from webhook import Authority, Webhook, free_port, wait

RECORDED = Path(__file__).resolve().parents[2] / "crates/tonnage-admit/tests/recorded"
REVIEW = json.loads((RECORDED / "admission-review.json").read_text())
SLICE = json.loads((RECORDED / "resource-slice.json").read_text())
POD = {
    "metadata": {"name": "fx", "namespace": "default", "uid": "5a0f95d5-ad3e-4dc1-ae91-94fbf8a34358"},
    "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
        "containers": [
            {
                "name": "job",
                "image": "train:1",
                "command": ["python", "train.py"],
                "resources": {"claims": [{"name": "gpu"}]},
            }
        ],
    },
}


class Server:
    """Pods and slices that are listed and watched over TLS, and a client other than the API server is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = {"webhook": "secret"}
        self.authority = Authority(folder / "pki", "tests")
        self.pods: list[Any] = []
        self.slices: list[Any] = [SLICE]
        self.watches: list[queue.Queue[Any]] = []
        self.lists = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: Any) -> None:
                """Writes nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.authority.sign("apiserver"))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Lists, watches, or gives one pod."""
        path, _, query = request.path.partition("?")
        if request.headers["Authorization"] != "Bearer secret":
            self.send(request, {"code": 401, "message": "Unauthorized"}, 401)
        elif path.startswith("/api/v1/namespaces/"):
            named = [one for one in self.pods if one["metadata"]["name"] == path.rsplit("/", 1)[1]]
            self.send(request, named[0] if named else {"code": 404}, 200 if named else 404)
        elif "watch=1" in query:
            self.watch(request, path)
        else:
            self.lists += 1
            items = self.slices if "resourceslices" in path else self.pods
            # A page with one object each.
            at = int(query.rpartition("continue=")[2]) if "continue=" in query else 0
            rest = {"continue": str(at + 1)} if at + 1 < len(items) else {}
            self.send(request, {"metadata": {"resourceVersion": "1", **rest}, "items": items[at : at + 1]})

    def send(self, request: BaseHTTPRequestHandler, body: Any, code: int = 200) -> None:
        """Answers with JSON."""
        text = json.dumps(body).encode()
        request.send_response(code)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def watch(self, request: BaseHTTPRequestHandler, path: str) -> None:
        """Sends the given events, in two pieces each."""
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        events: queue.Queue[Any] = queue.Queue()
        if path.endswith("/pods"):
            self.watches.append(events)
        while (event := events.get()) is not None:
            if event == "break":
                request.close_connection = True
                return
            text = json.dumps(event).encode() + b"\n"
            for piece in (text[:20], text[20:]):
                request.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                request.wfile.flush()
        request.wfile.write(b"0\r\n\r\n")

    def tell(self, event: Any) -> None:
        """Notifies the newest watch of pods."""
        wait("watched: pods", lambda: self.watches, 20)
        self.watches[-1].put(event)

    def run(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program, whose output goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        return self.processes[-1]

    def log(self, name: str) -> str:
        """The output of a program."""
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server in place of the API server."""
    one = Server(tmp_path)
    yield one
    for process in one.processes:
        process.kill()
        process.wait()
    one.server.shutdown()


def start(server: Server, mode: str = "enforce") -> Webhook:
    """A webhook that is ready."""
    one = Webhook(server, Path(os.environ["TONNAGE_ADMIT"]), server.folder / "store")
    one.start(mode)
    return one


def connect(webhook: Webhook) -> HTTPSConnection:
    """A connection as the API server has it."""
    context = ssl.create_default_context(cafile=str(webhook.authority.certificate))
    return HTTPSConnection("127.0.0.1", webhook.port, context=context, timeout=20)


def ask(webhook: Webhook, review: Any = REVIEW) -> Any:
    """The response to a review."""
    connection = connect(webhook)
    connection.request("POST", "/claims", json.dumps(review), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200
    response = json.loads(answer.read())["response"]
    assert response["uid"] == review["request"]["uid"]
    connection.close()
    return response


def patched(response: Any) -> Any:
    """The memory that a response writes."""
    patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
    return [one["value"]["requests"]["memory"] for one in patch if one["path"].endswith("/capacity")]


def test_pods_are_listed_watched_and_looked_up(server: Server) -> None:
    server.pods = [{**POD, "metadata": {"name": f"other-{n}", "namespace": "default", "uid": str(n)}} for n in range(3)]
    webhook = start(server)
    response = ask(webhook)
    # Nobody knows the pod: its claim gets a whole GPU.
    assert "pod fx is gone" in response["warnings"][0] and patched(response) == ["81559Mi"]
    server.tell({"type": "ADDED", "object": {**POD, "metadata": {**POD["metadata"], "resourceVersion": "5"}}})
    wait("seen: the pod", lambda: "gone" not in ask(webhook)["warnings"][0], 20)
    server.tell({"type": "DELETED", "object": {**POD, "metadata": {**POD["metadata"], "resourceVersion": "6"}}})
    wait("seen: that it is gone", lambda: "gone" in ask(webhook)["warnings"][0], 20)
    # One that is newer than the watch is requested.
    server.pods.append(POD)
    assert "gone" not in ask(webhook)["warnings"][0]


def test_a_watch_that_is_too_old_begins_again_with_a_list(server: Server) -> None:
    webhook = start(server)
    lists = server.lists
    server.pods = [POD]
    server.tell({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
    wait("listed again", lambda: server.lists > lists, 20)
    wait("seen: the pod", lambda: "gone" not in ask(webhook)["warnings"][0], 20)
    # One that merely ends goes on where it was.
    lists, watches = server.lists, len(server.watches)
    server.tell(None)
    wait("watched again", lambda: len(server.watches) > watches, 20)
    assert server.lists == lists


def test_watches_that_break_again_and_again_are_soon_back(server: Server) -> None:
    webhook = start(server)
    for _ in range(6):
        watches = len(server.watches)
        server.tell("break")
        # A client that waited longer after each would miss pods for half a minute in the end.
        wait("watched again", lambda watches=watches: len(server.watches) > watches, 5)
    failed = [line["message"] for line in webhook.lines() if line["event"] == "watch failed"]
    assert len(failed) == 6 and all("does not answer" in line for line in failed), failed


def test_it_is_not_ready_before_it_knows_the_cluster(server: Server) -> None:
    server.tokens["webhook"] = "wrong"
    one = Webhook(server, Path(os.environ["TONNAGE_ADMIT"]), server.folder / "store")
    with pytest.raises(AssertionError, match="not ready"):
        one.start("enforce", 4)
    assert one.get("/healthz") == 200 and one.get("/readyz") == 503
    assert any(line["event"] == "watch failed" and "401" in line["message"] for line in one.lines())
    connection = connect(one)
    connection.request("POST", "/claims", json.dumps(REVIEW))
    assert connection.getresponse().status == 503
    # A token that is right later is found.
    (server.folder / "webhook.token").write_text("secret")
    wait("ready", lambda: one.get("/readyz") == 200, 30)


def test_a_request_in_flight_is_finished_when_it_ends(server: Server) -> None:
    server.pods = [POD]
    webhook = start(server)
    body = json.dumps(REVIEW).encode()
    connection = connect(webhook)
    connection.putrequest("POST", "/claims")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:100])
    time.sleep(0.5)
    assert webhook.process is not None
    webhook.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    connection.send(body[100:])
    answer = connection.getresponse()
    assert answer.status == 200 and json.loads(answer.read())["response"]["allowed"]
    connection.close()
    assert webhook.process.wait(20) == 0


def test_certificates_are_changed_while_it_runs(server: Server) -> None:
    webhook = start(server)
    new = Authority(server.folder / "new", "new")
    certificate, key = new.sign("webhook")
    webhook.certificate.write_bytes(b"half a certificate")
    wait("noticed", lambda: any(line["event"] == "certificates not changed" for line in webhook.lines()), 20)
    assert webhook.get("/healthz") == 200
    webhook.key.write_bytes(key.read_bytes())
    webhook.certificate.write_bytes(certificate.read_bytes())
    wait("changed", lambda: any(line["event"] == "certificates changed" for line in webhook.lines()), 20)
    # The authority of before has not signed it.
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(webhook).request("GET", "/healthz")
    webhook.authority = new
    assert webhook.get("/healthz") == 200


def test_whoever_talks_nonsense_or_not_at_all_is_not_waited_for(server: Server) -> None:
    server.pods = [POD]
    webhook = start(server)
    silent = [socket.create_connection(("127.0.0.1", webhook.port)) for _ in range(50)]
    silent[0].sendall(os.urandom(10_000))
    # This one has finished the handshake of TLS, and then sends nothing.
    quiet = connect(webhook)
    quiet.connect()
    large = connect(webhook)
    large.putrequest("POST", "/claims")
    large.putheader("Content-Length", str(1 << 40))
    large.endheaders()
    assert large.getresponse().status == 413
    slow = connect(webhook)
    slow.putrequest("POST", "/claims")
    slow.putheader("Content-Length", "100")
    slow.endheaders(b"{")
    assert ask(webhook)["allowed"]
    assert slow.getresponse().status == 408
    quiet.sock.settimeout(20)
    assert quiet.sock.recv(1) == b""
    for one in silent:
        one.close()
    assert webhook.get("/readyz") == 200


def test_slow_and_silent_clients_leave_the_others_their_answers(server: Server) -> None:
    server.pods = [POD]
    webhook = start(server)
    # More than the reviews that were read at a time before, each with a body that does not come.
    head = b"POST /claims HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n{"
    context = ssl.create_default_context(cafile=str(webhook.authority.certificate))
    slow = []
    for _ in range(70):
        plain = socket.create_connection(("127.0.0.1", webhook.port), 20, source_address=("127.0.0.2", 0))
        slow.append(context.wrap_socket(plain, server_hostname="localhost"))
        slow[-1].sendall(head)
    began = time.monotonic()
    assert ask(webhook)["allowed"]
    took = time.monotonic() - began
    # One address opens as many connections as it gets, and then some.
    silent = [
        socket.create_connection(("127.0.0.1", webhook.port), source_address=("127.0.0.3", 0)) for _ in range(1100)
    ]
    time.sleep(1)
    assert ask(webhook)["allowed"]
    for one in [*slow, *silent]:
        one.close()
    assert took < 1.5, f"{took} s: as long as the slow clients had"


def test_probes_and_metrics_have_a_port_of_their_own(server: Server) -> None:
    webhook = Webhook(server, Path(os.environ["TONNAGE_ADMIT"]), server.folder / "store")
    port = free_port()
    webhook.more = ["--status-listen", f"127.0.0.1:{port}"]
    webhook.start("enforce")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert b"tonnage_admit_ready 1" in answer.read()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20) as answer:
        assert answer.status == 200
    # A client that sends reviews does not read the names of teams.
    assert webhook.get("/metrics") == 404


def test_a_job_without_a_forecast_may_have_a_gpu_of_any_size(server: Server) -> None:
    large = json.loads(json.dumps(SLICE).replace("81559Mi", "143771Mi"))
    large["metadata"]["name"] = "large"
    server.slices = [SLICE, large]
    webhook = start(server)
    response = ask(webhook)
    assert response["allowed"] and patched(response) == []
    assert "takes whole GPUs, of whichever size" in response["warnings"][0]


def test_only_new_files_of_a_store_are_read(server: Server) -> None:
    store = server.folder / "store"
    (store / "forecasts/abc").mkdir(parents=True)
    webhook = start(server)

    def reads() -> list[Any]:
        return [line for line in webhook.lines() if line["event"] == "forecasts read"]

    wait("read", reads)
    (store / "forecasts/abc/damaged.json").write_text("{")
    wait("read again", lambda: reads()[-1]["damaged"], 30)
    # Nothing has changed since: the store is not read again.
    count = len(reads())
    time.sleep(5)
    assert len(reads()) == count
