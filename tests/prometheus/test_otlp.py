# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is sent by OTLP, decoded with OpenTelemetry's own package and compared with Prometheus' text."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from typing import Any

import pytest
from daemon import ROOT, free_port, wait_for

if not os.environ.get("PROMETHEUS_REQUIRED"):
    pytest.importorskip("opentelemetry.proto")

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.metrics.v1 import metrics_pb2

TONNAGE = os.environ.get("TONNAGE", str(ROOT / "target" / "debug" / "tonnage"))
GIB = 1 << 30


class Collector:
    """Takes what is sent. `answers` are given first: a code, headers and a body."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.requests.append((self.path, headers, body))
                code, more, said = collector.answers.pop(0) if collector.answers else (200, {}, b"")
                self.send_response(code)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        scheme = "https" if context is not None else "http"
        self.endpoint = f"{scheme}://127.0.0.1:{self.server.server_port}"

    def decoded(self) -> list[Any]:
        return [service.ExportMetricsServiceRequest.FromString(body) for _, _, body in self.requests]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """A store with what jobs used, some of it against a forecast, and a cluster's account."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "job.py").write_text('import torch\ntorch.empty(8 << 30, dtype=torch.uint8, device="cuda")\n')
    python = os.environ.get("TORCH_PYTHON", "python")
    make = [TONNAGE, "forecast", "make", "--json", "--gpu", "h100", "--store", "store", "--", python, "job.py"]
    forecast = json.loads(subprocess.check_output(make, cwd=folder))
    learn = [TONNAGE, "forecast", "learn", "--store", "store", "--forecast", forecast["name"], "--asked", "80GiB"]
    for job, used in enumerate(("8.2GiB", "8.7GiB", "9GiB")):
        subprocess.run([*learn, "--team", 'ä "team"\\', "--job", str(job), "--used", used], cwd=folder, check=True)
    devices = [{"name": "gpu-0", "capacity": {"memory": {"value": "80Gi"}}}]
    spec = {"nodeName": "a", "driver": "gpu.nvidia.com", "pool": {"name": "a"}, "devices": devices}
    slices = {"kind": "List", "items": [{"kind": "ResourceSlice", "metadata": {"name": "a"}, "spec": spec}]}
    (folder / "account.json").write_text(json.dumps(slices))
    return [TONNAGE, "fleet", "metrics", "--store", str(folder / "store"), str(folder / "account.json")]


def variables(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return kept | more


LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def by_text(text: str) -> tuple[dict[str, str], dict[tuple, float]]:
    """Kinds of metrics, and samples by name and labels, as Prometheus' text has them."""
    kinds, samples = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("#"):
            named, _, value = line.rpartition(" ")
            name, _, labels = named.partition("{")
            unescaped = {key: re.sub(r"\\(.)", r"\1", text) for key, text in LABEL.findall(labels) if text}
            samples[name, tuple(sorted(unescaped.items()))] = float(value)
    return kinds, samples


def by_protocol(request: Any) -> tuple[dict[str, str], dict[tuple, float]]:
    """The same of what was sent. Cumulative counts of buckets are made here."""
    kinds, samples = {}, {}
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    for metric in scope.metrics:
        form = metric.WhichOneof("data")
        data = getattr(metric, form)
        kinds[metric.name] = {"sum": "counter"}.get(form, form)
        assert metric.description
        if form == "sum":
            assert data.is_monotonic
        if form != "gauge":
            assert data.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
        for point in data.data_points:
            assert abs(point.time_unix_nano / 1e9 - time.time()) < 600
            labels = {pair.key: pair.value.string_value for pair in point.attributes}
            assert len(labels) == len(point.attributes)

            def key(suffix: str, labels: dict[str, str], name: str = metric.name) -> tuple:
                return (name + suffix, tuple(sorted(labels.items())))

            if form != "histogram":
                samples[key("", labels)] = float(getattr(point, point.WhichOneof("value")))
                continue
            below = 0
            for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
                below += count
                text = "+Inf" if bound == float("inf") else f"{bound:g}"
                samples[key("_bucket", labels | {"le": text})] = float(below)
            samples[key("_count", labels)] = float(point.count)
            if point.HasField("sum"):
                samples[key("_sum", labels)] = point.sum
    return kinds, samples


def test_what_is_sent_is_what_prometheus_would_read(words, collector):
    text = subprocess.check_output(words, text=True)
    sent = subprocess.run(
        [*words, "--otlp"],
        capture_output=True,
        text=True,
        env=variables(OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint),
    )
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, "", "")
    (request,) = collector.decoded()
    kinds, samples = by_text(text)
    sent_kinds, sent_samples = by_protocol(request)
    errors = [key for key in samples if key[0] == "tonnage_forecast_error_ratio_sum"]
    # Errors are negative too, and a sum of such values is not sent.
    assert len(errors) == 1 and all(key not in sent_samples for key in errors)
    assert sent_samples == {key: value for key, value in samples.items() if key not in errors}
    assert len(samples) >= 30 and "histogram" in sent_kinds.values()
    # A metric without a sample is not sent.
    assert sent_kinds == {name: kind for name, kind in kinds.items() if name in sent_kinds}
    (scope,) = request.resource_metrics[0].scope_metrics
    units = {metric.name: metric.unit for metric in scope.metrics}
    assert units["tonnage_team_requested_bytes_total"] == units["tonnage_node_memory_bytes"] == "By"
    assert units["tonnage_forecast_error_ratio"] == "1" and units["tonnage_node_gpus"] == ""


def test_the_standard_variables_are_honoured(words, collector):
    env = variables(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{collector.endpoint}/some/where",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20secret",
        OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=train-0,service.name=other",
        OTEL_SERVICE_NAME="gpus",
    )
    subprocess.run([*words, "--otlp"], check=True, env=env)
    ((path, headers, _),) = collector.requests
    assert path == "/some/where"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["authorization"] == "Bearer secret"
    (request,) = collector.decoded()
    attributes = {pair.key: pair.value.string_value for pair in request.resource_metrics[0].resource.attributes}
    assert attributes.pop("service.version")
    assert attributes == {"k8s.pod.name": "train-0", "service.name": "gpus"}


def push(words: list[str], endpoint: str, **more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    before = time.monotonic()
    env = variables(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **more)
    done = subprocess.run([*words, "--otlp"], capture_output=True, text=True, env=env, timeout=120)
    return done, time.monotonic() - before


def test_a_receiver_that_is_busy_is_asked_again_and_one_that_refuses_is_not(words, collector):
    collector.answers = [(503, {"Retry-After": "2"}, b""), (429, {}, b"")]
    done, took = push(words, collector.endpoint)
    assert done.returncode == 0 and len(collector.requests) == 3 and took > 2
    assert collector.requests[0] == collector.requests[2]
    collector.requests.clear()
    collector.answers = [(400, {}, b"no \x1b[31msuch thing")]
    done, _ = push(words, collector.endpoint)
    assert done.returncode == 2 and len(collector.requests) == 1
    assert "answers 400: no [31msuch thing" in done.stderr
    collector.requests.clear()
    partial = service.ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points = 7
    partial.partial_success.error_message = "too old"
    collector.answers = [(200, {}, partial.SerializeToString())]
    done, _ = push(words, collector.endpoint)
    assert done.returncode == 2 and len(collector.requests) == 1
    assert "did not take 7 values: too old" in done.stderr


def test_a_receiver_that_is_not_there_or_says_nothing_is_given_up(words):
    done, took = push(words, f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 2 and "cannot be reached" in done.stderr and took < 60
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        done, took = push(words, f"http://127.0.0.1:{silent.getsockname()[1]}", OTEL_EXPORTER_OTLP_TIMEOUT="300")
    assert done.returncode == 2 and "does not answer in time" in done.stderr and took < 60
    for wrong in ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"OTEL_RESOURCE_ATTRIBUTES": "x"}):
        done, _ = push(words, "http://127.0.0.1:1", **wrong)
        assert done.returncode == 2 and next(iter(wrong)) in done.stderr


def test_a_receiver_is_known_by_its_certificate(words, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    make += ["-subj", "/CN=collector", "-addext", "subjectAltName=IP:127.0.0.1"]
    make += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*make, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    collector = Collector(context=context)
    try:
        done, _ = push(words, collector.endpoint, OTEL_EXPORTER_OTLP_CERTIFICATE=str(certificate))
        assert done.returncode == 0, done.stderr
        assert len(collector.decoded()) == 1
        done, _ = push(words, collector.endpoint)
        assert done.returncode == 2 and "certificate" in done.stderr.lower(), done.stderr
        assert len(collector.requests) == 1
    finally:
        collector.close()


def test_a_collector_that_dies_keeps_the_exporter_from_nothing(tmp_path):
    port = free_port()
    env = variables(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}", OTEL_METRIC_EXPORT_INTERVAL="200")
    log = tmp_path / "log"
    words = [TONNAGE, "fleet", "watch", str(tmp_path / "live"), "--listen", "127.0.0.1:0", "--otlp"]
    with open(log, "wb") as file:
        watch = subprocess.Popen(words, stderr=file, env=env)

    def text() -> str:
        found = re.search(r"http://(\S+)/metrics", log.read_text())
        if not found:
            return ""
        with urllib.request.urlopen(f"http://{found[1]}/metrics", timeout=10) as answer:
            return answer.read().decode()

    collector = None
    try:
        wait_for(lambda: 'tonnage_watch_pushes_total{result="failed"} 1' in text(), text)
        assert log.read_text().count("cannot be reached") == 1
        collector = Collector(port)
        wait_for(lambda: len(collector.requests) >= 3, text)
        _, samples = by_protocol(collector.decoded()[-1])
        _, expected = by_text(text())
        assert {name for name, _ in samples} == {name for name, _ in expected}
        assert samples["tonnage_watch_folder_found", ()] == 0
        seen = len(collector.requests)
        watch.terminate()
        assert watch.wait(timeout=60) == 0
        # The last figures are sent once more.
        assert len(collector.requests) > seen
    finally:
        if collector is not None:
            collector.close()
        if watch.poll() is None:
            watch.kill()
        watch.wait()
