# SPDX-License-Identifier: MIT OR Apache-2.0
"""A real Prometheus that scrapes one address every second."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus"
#: Longer than anything takes on a busy machine, in seconds.
PATIENCE = 400

Query = Callable[[str], list[Any]]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(what: Callable[[], Any], why: Callable[[], str]) -> Any:
    """The first answer that is something; fails with the text of `why`."""
    end = time.monotonic() + PATIENCE
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, why()
        time.sleep(0.3)


@contextmanager
def prometheus(folder: Path, target: str, *options: str) -> Iterator[Query]:
    """Scrapes `target`, a host with a port, and evaluates the rules; what is given answers a query."""
    port = free_port()
    scraped = {"job_name": "tonnage", "static_configs": [{"targets": [target]}]}
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": [str(RULES / "alerts.yml")],
        "scrape_configs": [scraped],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", *options]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def query(expression: str) -> list[Any]:
        encoded = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{encoded}", timeout=PATIENCE) as answer:
            return json.load(answer)["data"]["result"]

    def has_samples() -> bool:
        assert daemon.poll() is None, (folder / "log").read_text()
        try:
            # A rate needs two.
            return any(float(one["value"][1]) >= 3 for one in query("count_over_time(up[5m])"))
        except urllib.error.URLError:
            return False

    try:
        wait_for(has_samples, lambda: (folder / "log").read_text())
        yield query
    finally:
        daemon.kill()
        daemon.wait()
