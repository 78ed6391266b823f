# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage fleet review` against a separate simulation, the size of its page, and what a store learns of past jobs.

    TONNAGE=target/debug/tonnage python -m pytest tests/fleet/test_review.py

The simulation steps through time second by second and keeps a list of GPUs; it shares no code with the command.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

GIB = 1 << 30
#: In percent, in the order of the scenarios; none where jobs hold what they held.
MARGINS = (None, 0, 10, 20)


def tonnage(*words: str) -> Any:
    done = subprocess.run([os.environ["TONNAGE"], *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in words else done.stdout


def month(seed: int, jobs: int, span: int) -> list[dict[str, Any]]:
    """Jobs with whole numbers of seconds, of two kinds of GPUs; some without a measurement."""
    random.seed(seed)
    rows = []
    for number in range(jobs):
        start = random.randrange(span)
        used = random.choice([None, *[random.randrange(1, 75) * GIB] * 9])
        gpu = random.choice(["h100-80gb", "h100-80gb", "a100-40gb"])
        if used and gpu == "a100-40gb":
            used //= 2
        rows.append(
            {
                "job": number,
                "team": random.choice("abc"),
                "gpu": gpu,
                "gpus": random.choice([1, 1, 2, 4]),
                "used": used,
                "start": start,
                "end": start + random.randrange(1, span // 4),
            }
        )
    return rows


def simulate(rows: list[dict[str, Any]], sizes: dict[str, int], margin: int | None) -> tuple[int, int]:
    """The most GPUs in use in any second, and the seconds in which GPUs were in use, added up."""
    gpus: list[dict[str, Any]] = []
    most = total = 0
    for second in range(max(row["end"] for row in rows) + 1):
        for gpu in gpus:
            gpu["jobs"] = {job: bytes_ for job, bytes_ in gpu["jobs"].items() if rows[job]["end"] != second}
        for row in (row for row in rows if row["start"] == second):
            size = sizes[row["gpu"]]
            need = size
            if margin is not None and row["used"]:
                need = min(size, -(-row["used"] * (100 + margin) // 100))
            missing = row["gpus"]
            for gpu in gpus:
                if missing and gpu["kind"] == row["gpu"] and size - sum(gpu["jobs"].values()) >= need:
                    gpu["jobs"][row["job"]] = need
                    missing -= 1
            gpus += [{"kind": row["gpu"], "jobs": {row["job"]: need}} for _ in range(missing)]
        in_use = sum(bool(gpu["jobs"]) for gpu in gpus)
        most, total = max(most, in_use), total + in_use
    return most, total


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_simulation_finds_the_same_gpus(tmp_path: Path, seed: int) -> None:
    rows = month(seed, 120, 400)
    table = tmp_path / "jobs.csv"
    lines = ["job,team,gpu,gpus,used,start,end"]
    for row in rows:
        used = f"{row['used'] // GIB}GiB" if row["used"] and row["used"] % GIB == 0 else ""
        row["used"] = row["used"] if used else None
        lines.append(f"{row['job']},{row['team']},{row['gpu']},{row['gpus']},{used},{row['start']},{row['end']}")
    table.write_text("\n".join(lines) + "\n")
    review = tonnage("fleet", "review", "--json", str(table))
    assert review["jobs"] == len(rows)
    assert review["measured"] == sum(row["used"] is not None for row in rows)
    sizes = {}
    for gpu in ("h100-80gb", "a100-40gb"):
        sizes[gpu] = tonnage("gpus", "--json", gpu)["gpu"]["total_memory"]["value"]
    for scenario, margin in zip(review["scenarios"], MARGINS, strict=True):
        most, seconds = simulate(rows, sizes, margin)
        assert scenario["margin_percent"] == margin
        assert scenario["most_gpus"] == max(scenario["gpus"]) == most, margin
        assert scenario["gpu_hours"] == pytest.approx(seconds / 3600), margin
    measured = [row for row in rows if row["used"]]
    hours = sum(row["gpus"] * (row["end"] - row["start"]) for row in measured)
    held = sum(row["gpus"] * (row["end"] - row["start"]) * sizes[row["gpu"]] for row in measured)
    used = sum(row["gpus"] * (row["end"] - row["start"]) * row["used"] for row in measured)
    assert review["measured_gpu_hours"] == pytest.approx(hours / 3600)
    assert review["used_part"] == pytest.approx(used / held)


def test_names_are_text_on_a_page_of_bounded_size(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    lines = ["job,team,family,gpu,gpus,used,start,end"]
    lines += [f"{n},<u>{n}\x1b[2J,f{n},h100,1,20GiB,{n},{n + 50}" for n in range(3000)]
    table.write_text("\n".join(lines) + "\n")
    page = tmp_path / "review.html"
    text = tonnage("fleet", "review", str(table), "--html", str(page), "--price", "2.5")
    assert "\x1b" not in text and "3,000 measured jobs used 25 %" in text, text
    html = page.read_text()
    assert "<u>" not in html and "&lt;u&gt;" in html and len(html) < 100_000


SACCT = """\
JobID|JobName|Account|User|AllocTRES|NTasks|Start|End|State|TRESUsageInMax|AdminComment
7|train|vision|ann|billing=8,cpu=8,gres/gpu:h100=1,gres/gpu=1||2026-11-01T10:00:00|2026-11-01T12:00:00|FAILED||
7.batch|batch|vision||cpu=8,gres/gpu:h100=1|1|2026-11-01T10:00:00|2026-11-01T12:00:00|FAILED|cpu=1,gres/gpumem=81000M|
8|train|vision|ann|billing=8,cpu=8,gres/gpu:h100=4,gres/gpu=4||2026-11-01T10:00:00|2026-11-01T12:00:00|COMPLETED||
8.batch|batch|vision||cpu=8,gres/gpu:h100=4|1|2026-11-01T10:00:00|2026-11-01T12:00:00|COMPLETED|gres/gpumem=90000M|
9|tune|speech|bob|billing=8,cpu=8,gres/gpu:h100=2,gres/gpu=2||2026-11-01T10:00:00|2026-11-01T12:00:00|COMPLETED||
9.0|python|speech||cpu=8,gres/gpu:h100=2|2|2026-11-01T10:00:00|2026-11-01T12:00:00|COMPLETED|gres/gpumem=20000M|
"""


def test_a_store_learns_of_steps_of_slurm_and_forgets(tmp_path: Path) -> None:
    table = tmp_path / "jobs.txt"
    table.write_text(SACCT)
    review = tonnage("fleet", "review", "--json", str(table))
    assert (review["jobs"], review["measured"], review["full_failures"]) == (3, 3, 1)
    store = tmp_path / "store"
    where = ("--store", str(store))
    learned = tonnage("forecast", "learn-from", "--json", *where, str(table))
    # Slurm records only the sum of the four GPUs of job 8.
    assert (learned["jobs"], learned["full_failures"], learned["not_measured"]) == (2, 1, 1)
    # The same file again keeps nothing twice.
    tonnage("forecast", "learn-from", "--json", *where, str(table))
    files = [path for path in store.rglob("*") if path.is_file()]
    assert len(files) == 2
    os.utime(files[0], (0, 0))
    dry = tonnage("forecast", "prune", "--json", *where, "--older-than", "90", "--dry-run")
    assert (dry["dry_run"], dry["observations"]) == (True, 1) and files[0].exists()
    assert tonnage("forecast", "prune", "--json", *where, "--older-than", "90")["observations"] == 1
    assert not files[0].exists() and files[1].exists()
    job = json.loads(files[1].read_text())["job"]
    assert tonnage("forecast", "forget", "--json", *where, "--job", job)["files"] == 1
    again = subprocess.run(
        [os.environ["TONNAGE"], "forecast", "forget", *where, "--job", job], capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 1 and f"no observation of job {job}" in again.stdout


def test_files_that_are_no_accounting_get_a_next_step(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    for content, reason in [
        ("", "no line of names"),
        ("{}", "missing field `data`"),
        ("gpus,start,end\n", "no ended job with GPUs"),
        ("gpus,start,end\n" + "131072,0,9\n" * 300, "together"),
    ]:
        table.write_text(content)
        done = subprocess.run(
            [os.environ["TONNAGE"], "fleet", "review", table], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2 and reason in done.stderr, done
