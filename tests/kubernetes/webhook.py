# SPDX-License-Identifier: MIT OR Apache-2.0
"""The webhook as a process, and certificates for it."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def free_port() -> int:
    """A port that no process listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait(what: str, is_so: Callable[[], Any], seconds: float = 60) -> Any:
    """Waits until something is so, and gives it back."""
    end = time.monotonic() + seconds
    while True:
        found = is_so()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s: not {what}")
        time.sleep(0.1)


class Authority:
    """A certificate authority in a folder, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate, self.key = folder / "ca.crt", folder / "ca.key"
        new = f"-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {self.key} -out {self.certificate}"
        openssl(f"req -x509 {new} -days 2 -subj /CN={name}")

    def sign(self, name: str, hosts: tuple[str, ...] = ("localhost",)) -> tuple[Path, Path]:
        """A certificate for this machine under these names, and its key."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        extensions = self.folder / "extensions"
        extensions.write_text(",".join(["subjectAltName=IP:127.0.0.1", *(f"DNS:{host}" for host in hosts)]) + "\n")
        new = f"-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {key} -out {request}"
        openssl(f"req {new} -subj /CN={name}")
        by = f"-CA {self.certificate} -CAkey {self.key} -CAcreateserial -extfile {extensions}"
        openssl(f"x509 -req -in {request} {by} -days 2 -out {certificate}")
        return certificate, key


def api_server(cluster: Any, user: str) -> list[str]:
    """The arguments that give a program the address of the API server, and its own identity."""
    token = cluster.folder / f"{user}.token"
    token.write_text(cluster.tokens[user])
    words = ["--server", f"https://127.0.0.1:{cluster.port}", "--token", str(token)]
    return [*words, "--server-ca", str(cluster.authority.certificate)]


def openssl(arguments: str) -> None:
    """Runs openssl."""
    subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)


class Webhook:
    """tonnage's webhook as a process, with files of its name; in a cluster, its certificate is that of a service."""

    def __init__(
        self, cluster: Any, program: Path, store: Path, name: str = "webhook", host: str = "localhost"
    ) -> None:
        self.cluster, self.program, self.store, self.name = cluster, program, store, name
        self.port = free_port()
        self.authority = Authority(cluster.folder / name, name)
        self.certificate, self.key = self.authority.sign(name, (host,))
        self.process: subprocess.Popen[bytes] | None = None
        self.more: list[str] = []

    def start(self, mode: str, seconds: float = 30, delay: int = 0) -> None:
        """Starts it, and waits until it is ready."""
        self.launch(mode, delay)
        wait("ready: the webhook", lambda: self.get("/readyz") == 200, seconds)

    def launch(self, mode: str, delay: int = 0) -> None:
        """Starts it."""
        command = [str(self.program), "--mode", mode, "--store", str(self.store)]
        command += ["--listen", f"127.0.0.1:{self.port}", "--shutdown-delay", str(delay)]
        command += ["--certificate", str(self.certificate), "--key", str(self.key), *self.more]
        command += api_server(self.cluster, "webhook")
        self.process = self.cluster.run(self.name, command)

    def get(self, path: str) -> int | None:
        """The status of an address; none without an answer."""
        assert self.process is not None
        assert self.process.poll() is None, self.cluster.log(self.name)[-3000:]
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    def lines(self) -> Iterator[Any]:
        """Its output."""
        for line in self.cluster.log(self.name).splitlines():
            if line.startswith("{"):
                yield json.loads(line)

    def kill(self) -> None:
        """Ends it without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ends it as Kubernetes does."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)
