# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes docs/assets/capacity.svg: a training step of Llama 3 8B, and the GPUs whose memory it exceeds.

    python3 docs/assets/make_capacity.py --run --python VENV/bin/python [--tonnage PATH]
    python3 docs/assets/make_capacity.py            draws the chart from capacity.json
    python3 docs/assets/make_capacity.py --check    fails if capacity.json does not give the chart, or if it is
                                                    of other scripts

`--run` makes dry runs of examples/llama3 and writes capacity.json. VENV holds torch and transformers. Each crossing is
a dry run on that GPU: the line and the module at which it ran out of memory. The area is a dry run on a larger GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "examples" / "llama3"
PICTURE, DATA = HERE / "capacity.svg", HERE / "capacity.json"
SCRIPT, FIXED = "train.py", "train_fixed.py"
#: The GPUs that the step exceeds, with their short names; the first is the one on which the fixed script fits.
GPUS = {"rtx4090": "RTX 4090", "a100-40gb": "A100 40 GB", "h100-80gb": "H100 80 GB"}
#: A GPU on which the whole step fits.
LARGE = "b200"
MIB, GIB = 1 << 20, 1 << 30
#: The categories of the chart from the bottom, with the colors of the report; the others are drawn as one.
CATEGORIES = {
    "weights": ("weights", "#3b76c4"),
    "gradients": ("gradients", "#e08a1e"),
    "optimizer_state": ("optimizer state", "#8f72c6"),
    "activations": ("activations", "#2f9e77"),
    "other": ("other", "#878d97"),
}
#: The phases of the step, with the part of the width that each has. Phases have many or few events.
PHASES = {"load": 0.17, "forward": 0.29, "backward": 0.29, "optimizer": 0.25}
WIDTH, HEIGHT = 1200, 640
LEFT, RIGHT, TOP, BOTTOM = 70, 1180, 104, 558
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,'DejaVu Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def digest_script(name: str) -> str:
    return hashlib.sha256((EXAMPLE / name).read_bytes()).hexdigest()


def measure(python: Path, tonnage: str) -> dict[str, Any]:
    """The data of the chart, from dry runs."""
    with tempfile.TemporaryDirectory(prefix="tonnage-capacity-") as folder:

        def query(*words: str) -> Any:
            return json.loads(subprocess.run([tonnage, *words], cwd=folder, capture_output=True, text=True).stdout)

        def run(gpu: str, script: str) -> Any:
            print(f"tonnage run --gpu {gpu} {script}", flush=True)
            options = ["--json", "--no-progress", "--stop-at-oom", "--force", "-o", "run.tonnage", "--gpu", gpu]
            return query("run", *options, "--", str(python), str(EXAMPLE / script))

        verdict = run(LARGE, SCRIPT)
        step = read_timeline(query("report", "run.tonnage", "--text", "--json", "--compare-allocators=never"))
        failures = [read_failure(run(gpu, SCRIPT), gpu, query("explain", "--json", "run.tonnage")) for gpu in GPUS]
        fixed = run(next(iter(GPUS)), FIXED)
        fixed_step = read_timeline(query("report", "run.tonnage", "--text", "--json", "--compare-allocators=never"))
    return {
        "tonnage": subprocess.run([tonnage, "--version"], capture_output=True, text=True).stdout.strip(),
        "torch": verdict["torch"],
        "scripts": {name: digest_script(name) for name in (SCRIPT, FIXED)},
        "outcomes": {SCRIPT: verdict["outcome"], FIXED: fixed["outcome"]},
        "peak_allocated": {SCRIPT: peak_of(verdict), FIXED: peak_of(fixed)},
        "failures": failures,
        "step": step,
        "fixed_step": fixed_step,
    }


def peak_of(verdict: Any) -> int:
    return max(device["peak_allocated"] for device in verdict["devices"])


def read_timeline(report: Any) -> list[list[int]]:
    """The event and the MiB of each category, for each stretch of the recording."""
    rows = []
    for moment in report["timeline"]:
        named = [moment["categories"].get(name, 0) for name in CATEGORIES if name != "other"]
        rest = moment["allocated"] - sum(named)
        rows.append([moment["row"], *(round(value / MIB) for value in [*named, rest])])
    return rows


def read_failure(verdict: Any, gpu: str, explained: Any) -> dict[str, Any]:
    """Where the script ran out of memory on a GPU."""
    if verdict["outcome"] != "does_not_fit":
        raise SystemExit(f"{SCRIPT} on {gpu}: {verdict['outcome']}")
    moment = explained["moment"]
    line = moment["place"]["line"]
    return {
        "gpu": gpu,
        "capacity": explained["on_device"]["capacity"],
        "allocated": explained["on_device"]["allocated"],
        "requested": explained["request"]["bytes"],
        "line": line,
        "source": (EXAMPLE / SCRIPT).read_text().splitlines()[line - 1].strip(),
        "module": moment["module"],
    }


def find_phases(step: list[list[int]]) -> list[int]:
    """The index at which each phase begins, and the end. A phase begins with the first bytes of its category."""
    names = list(CATEGORIES)
    starts = [0]
    for name, least in (("activations", 256), ("gradients", 1), ("optimizer_state", 1)):
        column = 1 + names.index(name)
        starts.append(next((index for index, row in enumerate(step) if row[column] >= least), len(step) - 1))
    return [*starts, len(step) - 1]


def scale_phases(step: list[list[int]], parts: list[float]) -> Callable[[int], float]:
    """A function from an index to its place on the x axis. Within a phase, the place follows the events."""
    starts = [*find_phases(step)[: len(parts)], len(step) - 1]
    edges = [LEFT + (RIGHT - LEFT) * sum(parts[:count]) for count in range(len(parts) + 1)]

    def place(index: int) -> float:
        phase = max(number for number in range(len(parts)) if starts[number] <= index)
        first, last = step[starts[phase]][0], step[starts[phase + 1]][0]
        share = (step[index][0] - first) / (last - first) if last > first else 1.0
        return edges[phase] + share * (edges[phase + 1] - edges[phase])

    return place


def draw_text(x: float, y: float, text: str, **attributes: str | float) -> str:
    """A text; `_` in the names of attributes stands for `-`."""
    more = "".join(f' {name.replace("_", "-")}="{html.escape(str(value))}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(text, quote=False)}</text>'


def draw_path(points: list[tuple[float, float]], **attributes: str | float) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<path d="M{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"{more}/>'


def draw_chart(data: dict[str, Any]) -> str:
    step, failures = data["step"], data["failures"]
    totals = [sum(row[1:]) / 1024 for row in step]
    top = 10 * (int(max(totals)) // 10 + 2)

    def height(gib: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * gib / top

    place = scale_phases(step, list(PHASES.values()))
    xs = [place(index) for index in range(len(step))]
    parts = [
        draw_text(
            LEFT - 46, 44, "A training step of Llama 3 8B on GPUs that you don't have", font_size=30, font_weight=700
        )
    ]
    # The legend.
    x = LEFT - 46
    for name, color in CATEGORIES.values():
        parts.append(f'<rect x="{x}" y="63" width="13" height="13" rx="2" fill="{color}"/>')
        parts.append(draw_text(x + 20, 75, name, fill="#9aa4af"))
        x += 46 + round(9.6 * len(name))
    parts.append(f'<path d="M{x},70h26" stroke="#7ee787" stroke-width="3.5"/>')
    parts.append(draw_text(x + 34, 75, f"{FIXED}: bf16, checkpointing, Adafactor", fill="#9aa4af", font_size=16))
    # Axes.
    for value in range(0, top + 1, 20):
        parts.append(f'<path d="M{LEFT},{height(value):.1f}H{RIGHT}" stroke="#30363d"/>')
        parts.append(draw_text(LEFT - 10, height(value) + 5, f"{value}", text_anchor="end", fill="#9aa4af"))
    parts.append(draw_text(LEFT - 10, TOP + 5, "GiB", text_anchor="end", fill="#9aa4af"))
    edge = float(LEFT)
    for name, part in PHASES.items():
        wide = part * (RIGHT - LEFT)
        parts.append(draw_text(edge + wide / 2, BOTTOM + 24, name, text_anchor="middle", font_weight=600))
        if edge > LEFT:
            parts.append(f'<path d="M{edge:.1f},{TOP}V{BOTTOM + 8}" stroke="#57606a" stroke-dasharray="2 4"/>')
        edge += wide
    # The areas, from the bottom.
    below = [0.0] * len(step)
    for column, (_, color) in enumerate(CATEGORIES.values(), 1):
        above = [base + row[column] / 1024 for base, row in zip(below, step)]
        upper = [(x, height(value)) for x, value in zip(xs, above)]
        lower = [(x, height(value)) for x, value in zip(xs, below)]
        parts.append(draw_path(upper + lower[::-1], fill=color, fill_opacity=0.9))
        below = above
    parts += draw_crossings(step, failures, xs, totals, height)
    # The fixed step.
    fixed = data["fixed_step"]
    load, forward, *rest = PHASES.values()
    place_fixed = scale_phases(fixed, [load, forward, sum(rest)])
    line = [(place_fixed(index), height(sum(row[1:]) / 1024)) for index, row in enumerate(fixed)]
    parts.append(draw_path(line, fill="none", stroke="#0d1117", stroke_width=6, stroke_opacity=0.55))
    parts.append(draw_path(line, fill="none", stroke="#7ee787", stroke_width=3))
    peak = data["peak_allocated"][FIXED] / GIB
    first = failures[0]
    verb = "fits on" if data["outcomes"][FIXED] == "fits" else "does not fit on"
    words = f"{FIXED}: at most {peak:.1f} GiB, {verb} the {GPUS[first['gpu']]}"
    parts.append(
        draw_text(RIGHT - 12, height(0) - 16, words, text_anchor="end", font_weight=700, fill="#7ee787", **HALO)
    )
    release = data["torch"].partition("+")[0]
    note = (
        f"Dry runs with PyTorch {release}, without a GPU. Areas are allocated memory, without cache and context."
        " Phase widths are not times."
    )
    parts.append(draw_text(LEFT - 46, HEIGHT - 22, note, fill="#9aa4af", font_size=16))
    spoken = "; ".join(", ".join(describe_failure(failure)) for failure in failures)
    label = html.escape(f"GPU memory of a training step of Llama 3 8B by category. {spoken}; {words}.")
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" aria-label="{label}" font-family="{html.escape(FONT)}" font-size="18" fill="#e6edf3">\n'
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10" fill="#161b22" stroke="#444c56"/>\n'
        f"{body}\n</svg>\n"
    )


#: A dark outline of text that lies on an area.
HALO: dict[str, str | float] = {
    "stroke": "#0d1117",
    "stroke_width": 4,
    "paint_order": "stroke",
    "stroke_linejoin": "round",
}


def describe_failure(failure: dict[str, Any]) -> tuple[str, str]:
    """Where the script ran out of memory, and the code or the module there."""
    code = failure["module"] or failure["source"].partition(" = ")[2] or failure["source"]
    return f"{GPUS[failure['gpu']]}: out of memory at {SCRIPT}:{failure['line']}", code


def draw_crossings(
    step: list[list[int]],
    failures: list[dict[str, Any]],
    xs: list[float],
    totals: list[float],
    height: Callable[[float], float],
) -> list[str]:
    """The capacity of each GPU, and the line of the script that exceeds it."""
    parts = []
    for failure in failures:
        capacity = failure["capacity"] / GIB
        y = height(capacity)
        index = next(index for index, total in enumerate(totals) if total >= failure["allocated"] / GIB)
        x = xs[index]
        parts.append(draw_path([(LEFT, y), (RIGHT, y)], stroke="#0d1117", stroke_width=4, stroke_opacity=0.5))
        parts.append(draw_path([(LEFT, y), (RIGHT, y)], stroke="#ff8a7f", stroke_width=2, stroke_dasharray="8 5"))
        name = f"{GPUS[failure['gpu']]}: {capacity:.1f} GiB"
        parts.append(draw_text(RIGHT - 12, y - 8, name, text_anchor="end", font_weight=700, fill="#ffb3ab", **HALO))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="#ff6b5e" stroke="#fff" stroke-width="2"/>')
        at_right = x < (LEFT + RIGHT) / 2
        start = x + 16 if at_right else x - 16
        anchor = "start" if at_right else "end"
        where, code = describe_failure(failure)
        parts.append(draw_text(start, y - 32, where, text_anchor=anchor, font_weight=700, **HALO))
        parts.append(draw_text(start, y - 11, code, text_anchor=anchor, font_family=MONO, font_size=17, **HALO))
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws docs/assets/capacity.svg from dry runs.")
    parser.add_argument("--run", action="store_true", help="make the dry runs, and write capacity.json")
    parser.add_argument("--python", type=Path, help="of an environment with torch and transformers, for --run")
    parser.add_argument("--tonnage", default="tonnage", help="the command, for --run")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the chart is not current")
    options = parser.parse_args()
    if options.run:
        if not options.python:
            parser.error("--run needs --python")
        data = measure(Path(os.path.abspath(options.python)), options.tonnage)
        text = json.dumps(data, indent=1)
        # One stretch per line.
        lines = text.replace("\n   ", " ").replace("\n  ]", " ]").replace("[ ", "[").replace(" ]", "]")
        DATA.write_text(lines + "\n", encoding="utf-8")
        print(f"wrote {DATA.name}")
    data = json.loads(DATA.read_text(encoding="utf-8"))
    if changed := [name for name, value in data["scripts"].items() if digest_script(name) != value]:
        print(f"{', '.join(changed)}: changed since the dry runs; make {DATA.name} again with --run")
        return 1
    chart = draw_chart(data)
    if not options.check:
        PICTURE.write_text(chart, encoding="utf-8")
        print(f"wrote {PICTURE.name}")
    elif chart != PICTURE.read_text(encoding="utf-8"):
        print(f"{PICTURE.name} does not follow from {DATA.name}; make it again with {Path(__file__).name}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
