# SPDX-License-Identifier: MIT OR Apache-2.0
"""The metrics of tonnage, with Prometheus itself: names and types, alert rules, the queries of the dashboard.

`TONNAGE` names the command, `TORCH_PYTHON` a Python with torch. Without prometheus and promtool nothing is tested,
unless `PROMETHEUS_REQUIRED` is set.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import daemon
import pytest
from daemon import ROOT, RULES

TONNAGE = os.environ.get("TONNAGE", str(ROOT / "target" / "debug" / "tonnage"))
DASHBOARD = ROOT / "deploy" / "grafana" / "tonnage.json"

MISSING = [name for name in ("promtool", "prometheus") if not shutil.which(name)]
if MISSING and not os.environ.get("PROMETHEUS_REQUIRED"):
    pytest.skip(f"{', '.join(MISSING)} not installed", allow_module_level=True)

GIB = 1 << 30


def slice_of(node: str) -> dict:
    devices = [{"name": f"gpu-{at}", "capacity": {"memory": {"value": "80Gi"}}} for at in range(2)]
    spec = {"nodeName": node, "driver": "gpu.nvidia.com", "pool": {"name": node}, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def claim(name: str, memory: str, node: str | None, device: str = "gpu-0") -> dict:
    exactly = {"count": 1, "capacity": {"requests": {"memory": memory}}}
    results = [{"pool": node, "device": device, "request": "gpu", "driver": "gpu.nvidia.com"}] if node else []
    for result in results:
        result["consumedCapacity"] = {"memory": memory}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "vision"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": results}}} if node else {},
    }


ACCOUNT = {
    "kind": "List",
    "items": [
        slice_of("a"),
        slice_of("b"),
        claim("small", "30Gi", "a"),
        claim("large", "70Gi", "b"),
        claim("next", "30Gi", None),
        claim("never", "96Gi", None),
    ],
}


def tonnage(*words: str, folder: Path | None = None) -> str:
    done = subprocess.run([TONNAGE, *words], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module")
def metrics(tmp_path_factory) -> str:
    """A store with what three jobs used, and the account of a cluster."""
    folder = tmp_path_factory.mktemp("fleet")
    store, account = folder / "store", folder / "account.json"
    account.write_text(json.dumps(ACCOUNT))
    (folder / "job.py").write_text('import torch\ntorch.empty(8 << 30, dtype=torch.uint8, device="cuda")\n')
    make = ["forecast", "make", "--json", "--gpu", "h100", "--store", str(store), "--"]
    forecast = json.loads(tonnage(*make, os.environ.get("TORCH_PYTHON", "python"), "job.py", folder=folder))
    name, bound = forecast["name"], forecast["roles"][0]["bound"]
    assert 8.5 * GIB < bound < 9 * GIB
    (store / "forecasts" / "damaged.json").write_text("{")
    learn = ["forecast", "learn", "--store", str(store), "--forecast", name, "--asked", "80GiB"]
    for job, used, ended in [("1", "8.5GiB", "completed"), ("2", "9GiB", "completed"), ("3", "79GiB", "oom")]:
        tonnage(*learn, "--team", 'a "team"', "--job", job, "--used", used, "--ended", ended)
    return tonnage("fleet", "metrics", "--store", str(store), str(account))


def value(metrics: str, start: str) -> float:
    found = [line.rpartition(" ")[2] for line in metrics.splitlines() if line.startswith(start)]
    assert len(found) == 1, (start, found)
    return float(found[0])


def test_what_is_told_is_what_was_observed(metrics):
    assert value(metrics, 'tonnage_node_requested_bytes{node="a"}') == 30 * GIB
    assert value(metrics, 'tonnage_node_stranded_bytes{node="b"}') == 10 * GIB
    assert value(metrics, "tonnage_claims_impossible") == 1
    assert value(metrics, "tonnage_oom_total") == 1
    assert value(metrics, "tonnage_over_bound_total") == 1
    assert value(metrics, "tonnage_forecast_error_ratio_count") == 2
    assert value(metrics, 'tonnage_team_requested_bytes_total{team="a \\"team\\""}') == 3 * 80 * GIB
    assert value(metrics, "tonnage_store_damaged_files") == 1


def test_promtool_finds_nothing_wrong_with_the_metrics(metrics):
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_rules():
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *words], cwd=RULES, capture_output=True, text=True)
        assert done.returncode == 0, done
    rules = (RULES / "alerts.yml").read_text()
    tests = (RULES / "alerts_test.yml").read_text()
    alerts = set(re.findall(r"alert: (\w+)", rules))
    assert alerts and alerts == set(re.findall(r"alertname: (\w+)", tests))


#: Metrics of the webhook alone; its own tests check the numbers.
ADMIT = """tonnage_admit_claims_total{result="filled"} 3
tonnage_admit_claim_duration_seconds_bucket{le="0.001"} 2
tonnage_admit_claim_duration_seconds_bucket{le="+Inf"} 3
tonnage_admit_ready 1
"""


#: Metrics of `tonnage fleet watch` alone; test_watch.py checks the numbers.
WATCH = "".join(
    f'tonnage_{name}{{run="0",family="train.py",source="gpu",process="0",device="0",gpu="l4",gpu_uuid="x"}} {value}\n'
    for name, value in {
        "used_bytes": 3,
        "job_bound_bytes": 4,
        "reserved_bytes": 2,
        "allocated_bytes": 1,
        "inactive_split_bytes": 1,
        "process_oom_total": 0,
        "recording_complete": 1,
        "recording_last_event_timestamp_seconds": 1,
    }.items()
)


@pytest.fixture(scope="module")
def prometheus(metrics, tmp_path_factory):
    """A Prometheus that reads the metrics every second, with the rules."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write((metrics + ADMIT + WATCH).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        folder = tmp_path_factory.mktemp("prometheus")
        with daemon.prometheus(folder, f"127.0.0.1:{server.server_port}") as query:
            yield query
    finally:
        server.shutdown()


def test_every_query_of_the_dashboard_has_an_answer(prometheus):
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(queries) > 15
    for query in queries:
        assert prometheus(query), query


def test_the_dashboard_is_drawn_without_gaps():
    board = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    rows = {y for _, y in taken}
    assert len(taken) == 24 * len(rows)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
