# SPDX-License-Identifier: MIT OR Apache-2.0
"""Memory of allocators on recordings of real torch: makes the recordings and prints the table of docs/benchmarks.md.

    python3 tests/allocator/measure.py --tonnage target/debug/tonnage --python .venv/bin/python [NAME …]

A recording is made by `tonnage run` from each program of `programs.py`, a plan by `tonnage plan --for-runtime`, and the
figures come from `tonnage replay --json`. Files that exist in the folder (`--folder`) are used again. For each
allocator: reserved on a device with room, and the smallest device on which the recording completes, context left out,
both above the most that was alive, in percent.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ALLOCATORS = ["torch", "torch:expandable_segments:True", "tonnage"]


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode not in (0, 1):
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def measured(options, name):
    recording, plan = (options.folder / f"{name}.{end}" for end in ("tonnage", "plan"))
    if not recording.exists():
        script = [options.python, HERE / "programs.py", name]
        ranks = ["--world-size", "2", "--ranks", "0"] if name.startswith("fsdp2") else []
        run(options.tonnage, "run", "--gpu", "a100-80gb", *ranks, "-o", recording, "--", *script)
    made = json.loads(
        run(
            options.tonnage,
            "plan",
            recording,
            "--for-runtime",
            "-o",
            plan,
            "--force",
            "--json",
            "--no-progress",
            "--deadline",
            "60",
        )
    )
    allocators = [word for alloc in ALLOCATORS for word in ("--alloc", alloc)]
    replayed = json.loads(run(options.tonnage, "replay", recording, *allocators, "--plan", plan, "--json"))
    track = replayed["tracks"][0]
    live = track["peak_live"]

    def above(size):
        return None if size is None else (size / live - 1) * 100

    row = {"name": name, "requests": track["requests"], "live": live, "steps": made["steps"], "kinds": made["kinds"]}
    for one in track["allocators"]:
        smallest = one["smallest"] and one["smallest"]["bytes"] - track["context"] - track["peak_outside"]
        row[one["allocator"]] = {
            "reserved": above(one["peak_reserved"]),
            "bytes": one["peak_reserved"],
            "smallest": above(smallest),
            "calls": sum(one["driver"].values()),
            "unmaps": one["driver"]["unmap"],
            **(one["own"] or {}),
        }
    return row


def line(row):
    def cell(name):
        one = row[name]
        return f"{one['reserved']:.2f}, {one['smallest']:.2f}"

    torch, expandable, own, planned = (cell(name) for name in [*ALLOCATORS, "tonnage, with the plan"])
    plan = row["tonnage, with the plan"]["plan"]
    hits = plan["hits"] * 1000 // plan["requests"] / 10
    moves = f"{row['tonnage']['pages_moved']:,}, {row['tonnage, with the plan']['pages_moved']:,}"
    cells = [
        f"`{row['name']}`", f"{row['requests']:,}", f"{row['live'] / 2**30:.2f} GiB",
        torch, expandable, own, planned, f"{hits:.1f} %", moves,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tonnage", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("target/allocator"))
    parser.add_argument("--json", type=Path, help="where to keep all figures")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    text = (HERE / "programs.py").read_text()
    listed = re.findall(r"^    (\w+),$", text[text.index("PROGRAMS = [") :], re.MULTILINE)
    print(
        "| program | requests | live peak | torch | expandable segments | tonnage | with a plan | hits | pages moved |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for name in options.names or listed:
        rows.append(measured(options, name))
        print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
