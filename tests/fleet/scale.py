# SPDX-License-Identifier: MIT OR Apache-2.0
"""How time and memory of the fleet's commands grow with a cluster: the table of docs/concepts/fleet-scale.md.

    python3 tests/fleet/scale.py --tonnage target/release/tonnage

Accounts are as kubectl prints them: machines of 8 GPUs, three of four shared by two jobs, and a waiting claim for every
hundred GPUs. Stores hold one forecast for each job.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIB = 1 << 30
SIZES = (100, 1_000, 10_000, 100_000)
#: Of the jobs, in GiB.
SHARES = (12, 20, 28, 36, 44)


def claim(name: str, memory: int, result: dict | None) -> dict:
    exactly = {"count": 1, "capacity": {"requests": {"memory": f"{memory}Gi"}}}
    status = {"allocation": {"devices": {"results": [result]}}} if result else {}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": f"team-{memory}"},
        "spec": spec,
        "status": status,
    }


def account(gpus: int) -> dict:
    items: list[dict] = []
    for node in range(-(-gpus // 8)):
        devices = [
            {"name": f"gpu-{at}", "capacity": {"memory": {"value": "81559Mi"}}} for at in range(min(8, gpus - node * 8))
        ]
        spec = {
            "driver": "gpu.nvidia.com",
            "nodeName": f"node-{node}",
            "pool": {"name": f"node-{node}"},
            "devices": devices,
        }
        items.append({"kind": "ResourceSlice", "metadata": {"name": f"node-{node}"}, "spec": spec})
        for at, device in enumerate(devices):
            for which in range(2 if at % 4 else 0):
                memory = SHARES[(node * 3 + at + 2 * which) % len(SHARES)]
                held = {"driver": "gpu.nvidia.com", "pool": f"node-{node}", "device": device["name"]}
                held["consumedCapacity"] = {"memory": f"{memory}Gi"}
                items.append(claim(f"job-{node}-{at}-{which}", memory, held))
    for waiting in range(gpus // 100):
        items.append(claim(f"waiting-{waiting}", SHARES[waiting % len(SHARES)], None))
    return {"kind": "List", "items": items}


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def forecast(number: int) -> dict:
    """A forecast as `tonnage forecast make` writes it; its name is computed here on its own."""
    key = {"command": ["python", "train.py", str(number)], "image": None, "sources": {}, "allocator": None}
    job = hashlib.sha256(compact(list(key.values()))).hexdigest()[:16]
    key |= {"world_size": None, "gpus": None, "torch": "2.15.0", "gpu": "h100-80gb"}
    peak = (10 + number % 60) * GIB
    role = {
        "name": "GPU 0",
        "gpus": 1,
        "peak": peak,
        "known": "exact",
        "uncounted": GIB,
        "bound": peak + GIB,
        "least": None,
    }
    return {
        "schema_version": 1,
        "name": job + hashlib.sha256(compact(key)).hexdigest()[:8],
        "key": key,
        "family": "train.py",
        "gpu_memory": 79 * GIB,
        "fits": "yes",
        "roles": [role],
        "evidence": [{"source": "dry_run", "what": "a dry run", "complete": True}],
        "larger_gpus": [],
        "unknown": [],
    }


def measured(words: list[str]) -> tuple[str, float, float]:
    """The output of a command, its seconds, and the MiB of the largest process so far."""
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return done.stdout, seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tonnage", required=True)
    arguments = parser.parse_args()
    print("| GPUs, or forecasts | `fleet report` | its memory | `fleet metrics` | `forecast find` | `fleet slurm` |")
    print("|---|---|---|---|---|---|")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "account.json").write_text(json.dumps(account(size)))
            store = folder / "store"
            (store / "forecasts").mkdir(parents=True)
            for number in range(size):
                one = forecast(number)
                (store / "forecasts" / f"{one['name']}.json").write_bytes(compact(one))
            settings = f'store = "{store}"\nmode = "fill"\n[[gpu]]\ntype = "h100"\nshards = 79\n'
            (folder / "tonnage.toml").write_text(settings)
            report, seconds, memory = measured(
                [arguments.tonnage, "fleet", "report", "--json", f"{folder}/account.json"]
            )
            assert json.loads(report)["all"]["gpus"] == size
            _, told, _ = measured([arguments.tonnage, "fleet", "metrics", "--store", str(store)])
            job = ["--", "python", "train.py", str(size // 2)]
            found, find, _ = measured([arguments.tonnage, "forecast", "find", "--json", "--store", str(store), *job])
            assert len(json.loads(found)["forecasts"]) == 1
            asked, slurm, _ = measured(
                [arguments.tonnage, "fleet", "slurm", "--settings", f"{folder}/tonnage.toml", *job]
            )
            assert "action=fill" in asked, asked
            times = [f"{one:.3f} s" for one in (seconds, told, find, slurm)]
            print(f"| {size:,} | {times[0]} | {memory:.0f} MiB | {times[1]} | {times[2]} | {times[3]} |", flush=True)


if __name__ == "__main__":
    main()
