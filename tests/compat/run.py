# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the programs of docs/compatibility.md and writes the page and the files beside it.

    python3 tests/compat/run.py                     runs the rows whose result is missing or out of date
    python3 tests/compat/run.py --only gpt --again  runs rows whose name has `gpt`, whether or not they have a result
    python3 tests/compat/run.py --ci                runs the slice of CI and fails if a row is not as on a GPU; with
                                                    PROGRAMS=all that of a night, which has twice as many rows
    python3 tests/compat/run.py --page              writes the page from the results that are there
    python3 tests/compat/run.py --check             fails if page or rows do not agree with the results, if a row has no
                                                    result, or if one is too old (tests/results/stored.py)
    python3 tests/compat/run.py --environment 2.6.0 makes the environment of a torch, with the Python that it needs

Results are appended to results.jsonl one by one, so it can be ended at any time and started again. A result counts for
as long as its program and its row stay as they are. Environments are folders `torch-VERSION`, or that of a package with
its own torch, below ~/.cache/tonnage-compat, or elsewhere with `--environments`; a row without one is left out,
and said.
"""

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "results"))

import charts  # noqa: E402
import stored  # noqa: E402
from environments import OWN, PACKAGES, THEN, make  # noqa: E402
from rows import ROWS  # noqa: E402

RESULTS = HERE / "results.jsonl"
PAGE = ROOT / "docs" / "compatibility.md"
GIB = 1 << 30
#: Files that are made as a whole: all programs as a table and as CSV, and the chart.
ROWS_PAGE, TABLE = ROOT / "docs" / "compatibility-rows.md", ROOT / "docs" / "compatibility.csv"
CHART = ROOT / "docs" / "assets" / "compatibility.svg"
OPENING = """
# Tested programs

<!-- page not run: made by tests/compat/run.py, which takes an hour and other torches -->

This page lists programs that were dry-run on a machine without a GPU, and whether each ends as on a GPU. The outcome of
each program on a GPU follows from its source. No program was run on a real GPU, so its memory there is not known.
[Accuracy](fidelity.md) plots dry runs against measured memory.

* **Programs:** {rows}, of {packages} packages.
* **End as on a GPU:** {right} of {rows} ({share:.1f} %).
* **Misses:** {wrong}, listed below with their causes.
* **Without a limit:** the verdict of {unlimited} programs names no limit.
* **With a limit:** the verdict of {limited} programs names one. {branches} of them branch on values that were not
  computed.
* **PyTorch:** {torches}.
* **GPUs:** {gpus}.
* **Peak:** at most {most}, of {largest}.
* **Time of a dry run:** a median of {median:.0f} s of CPU time, and a 95th percentile of {high:.0f} s.
* **Memory of the host:** a median of {host}, and at most {host_most}.

![{label}](assets/compatibility.svg)

[All programs](compatibility-rows.md) are in a table that you can filter, and in a [CSV file](compatibility.csv).

## Misses and their causes

{misses}

## How the programs were run

Each program was run with `tonnage run --margin 0`. With a margin of 0, little headroom does not make a verdict
uncertain.

* *Works* means that the script ends as on a GPU, with the same exit code. Its output is the same where it does not
  depend on the values of kernels. The verdict is the expected one: the program fits, or it runs out of memory.
* *Limits* are those that the verdict reports.
* *Peak* is the memory of PyTorch's blocks, and in brackets the memory in use on the device with cache and context.
* CPU time and host memory (of the largest process) cover the whole dry run, with a debug build of tonnage on two shared
  cores.
* Weights are random, and the programs generate their data, because nothing is downloaded.

The programs are in `tests/compat/programs`, the expected outcomes in `tests/compat/rows.py`, and the results in
`tests/compat/results.jsonl`. The first command runs the programs that have no result yet. You can stop it and start it
again. The second creates the environment of a PyTorch version, which needs about 5 GB. The third computes this page,
its chart, and its tables from the results:

```sh
python3 tests/compat/run.py
python3 tests/compat/run.py --environment 2.6.0
python3 tests/compat/run.py --page
```
"""
ALL = """
# All tested programs

<!-- page not run: made by tests/compat/run.py -->

This page lists every program of [Tested programs](compatibility.md), whether it works or not. The same rows with exact
values are in [compatibility.csv](compatibility.csv).

{ages}

{filter}

{table}
"""
#: How verdicts of the stored results name values that were not computed, in older words and in the current ones.
UNCOMPUTED = " nobody computed", " that a dry run does not compute"
BRANCHES = re.compile(
    r"(\d+) value(s?) that the script decides by(?: and nobody computed|, which a dry run does not compute),"
    r" first read at "
)
# More than any program needs; keeps a mistake from taking the machine down. For one process, in real memory.
HOST_LIMIT = 14 * GIB


def digest(row):
    """Changes with the program and with everything of the row that decides what is run."""
    parts = [row.program, row.arguments, row.gpu, row.torch, row.options, row.outcome, row.prints, row.says]
    parts += [row.launch] if row.launch else []
    program = (HERE / "programs" / row.program).read_text()
    return hashlib.sha256(f"{parts} {program}".encode()).hexdigest()[:16]


def results():
    """The last result of every row, by name."""
    return stored.read_results(RESULTS, "name")


def tree_memory(group):
    """Resident bytes of the largest process of a process group, as the kernel counts them now."""
    most = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group:
                most = max(most, int(fields[21]) * resource.getpagesize())
        except (OSError, IndexError):
            continue
    return most


def run(row, tonnage, python):
    """One run in a folder of its own: the verdict, what the script printed, and what it cost."""
    with tempfile.TemporaryDirectory(prefix="compat-") as folder:
        program = shutil.copy(HERE / "programs" / row.program, folder)
        # A row states whether the program runs out of memory. How much headroom it has is not part of that.
        line = [tonnage, "run", "--json", "--no-progress", "--margin", "0", "--gpu", row.gpu, *row.options]
        line += ["-o", "out.tonnage", "--"]
        line += [str(python), *row.launch, Path(program).name, *row.arguments]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTORCH_", "CUDA_", "TORCH"))}
        variables = {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
        # Nothing compiled before: the time is that of a first run.
        variables |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        outputs = [open(Path(folder) / name, "w+") for name in ("out", "err")]
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        child = subprocess.Popen(
            line,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            process_group=0,
        )
        late, host = False, 0
        while child.poll() is None:
            time.sleep(0.2)
            host = max(host, tree_memory(child.pid))
            if time.monotonic() - began > row.seconds or host > HOST_LIMIT:
                late = True
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        texts = []
        for file in outputs:
            file.seek(0)
            texts.append(file.read())
            file.close()
        try:
            verdict = json.loads(texts[0])
        except ValueError:
            verdict = {}
        cost = {
            "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
            "host_bytes": host,
        }
        explained = text_of(tonnage, Path(folder) / "out.tonnage")
        return verdict, texts[1].replace(folder, ""), explained, cost, late


def text_of(tonnage, recording):
    """The answer of `tonnage explain` for the recording, so that its sentences are checked too."""
    if not recording.exists():
        return ""
    done = subprocess.run([tonnage, "explain", str(recording)], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def judge(row, tonnage, python):
    verdict, printed, explained, cost, late = run(row, tonnage, python)
    complaints = []
    outcome = verdict.get("outcome", "no verdict")
    if late:
        complaints.append("ended by the harness: too long, or too much host memory")
    if outcome != row.outcome:
        complaints.append(f"verdict is {outcome} instead of {row.outcome}")
    # The output of a rank may stand behind the progress bar of another, on the same line.
    lines = re.sub(r"(it/s|s/it)\]", "\\1]\n", printed)
    if not re.search(row.prints, lines, re.MULTILINE):
        complaints.append("the script did not print what it prints on a GPU")
    # Rows quote the rank, as verdicts did before schema version 4; another pattern would need another run of each.
    text = re.sub(r'"rank": (\d+)', r'"rank": "\1"', json.dumps(verdict))
    if row.says and not re.search(row.says, text):
        complaints.append(f"the verdict does not say {row.says}")
    if verdict.get("incomplete"):
        complaints.append(f"the recording is not complete: {verdict['incomplete']}")
    if re.search(r"panicked|internal error", printed + explained):
        complaints.append("a panic")
    last = [text for text in printed.splitlines() if text.strip()][-1:]
    limits = [shorten(text) for text in verdict.get("unknown", [])]
    devices = verdict.get("devices", [])
    totals = verdict.get("devices_total", [])
    return {
        "name": row.name,
        "digest": digest(row),
        "torch": verdict.get("torch", row.torch),
        "versions": versions(python, row.packages),
        "gpu": row.gpu,
        "outcome": outcome,
        "right": not complaints,
        "complaints": complaints,
        "ending": verdict.get("ending"),
        "limits": limits,
        "assumed": bool((verdict.get("unknown_values") or {}).get("sizes")),
        "unmodelled": [function["name"] for function in verdict.get("unmodelled", [])],
        "peak_allocated": max((device["peak_allocated"] for device in devices), default=0),
        "peak_reserved": max((device["peak_reserved"] for device in devices), default=0),
        "most_in_use": max((total["most_in_use"] for total in totals), default=0),
        "printed": shorten(last[0])[:200] if last else "",
        **cost,
    }, printed


def shorten(text):
    """Without folders of this machine."""
    return re.sub(
        r"(?<![\w.@+-])(/[\w.@+-]+)+/",
        lambda found: found.group(0).rsplit("site-packages/", 1)[1] if "site-packages/" in found.group(0) else "",
        text,
    )


def versions(python, packages):
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(python), "-c", code, *packages], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def size(number):
    return f"{number / GIB:.2f} GiB" if number >= GIB else f"{number / (1 << 20):.0f} MiB"


def state(row, result):
    if not result["right"]:
        return "**fails**: " + (row.cause or "; ".join(result["complaints"]))
    parts = []
    if result["assumed"]:
        parts.append("sizes rest on an assumption")
    limits = [BRANCHES.sub(r"branches on \1 value\2 not computed, first at ", text) for text in result["limits"]]
    parts += [text.replace(*UNCOMPUTED) for text in limits]
    if result["unmodelled"]:
        parts.append("not modelled: " + ", ".join(f"`{name}`" for name in result["unmodelled"][:3]))
    return "works" + ("; limits: " + "; ".join(parts) if parts else "")


def current(found):
    """The rows whose result is of their present program."""
    return [(row, found[row.name]) for row in ROWS if row.name in found and found[row.name]["digest"] == digest(row)]


def sort_versions(versions):
    return sorted(set(versions), key=lambda text: [int(part) for part in text.split(".")])


def package_of(row, result):
    version = result["versions"].get(row.packages[0], "")
    return row.packages[0] if row.packages[0] == "torch" else f"{row.packages[0]} {version}".strip()


def is_limited(row, result):
    return result["right"] and "limits:" in state(row, result)


def draw_chart(known):
    """A dot for each program, by package; the packages with the most programs come first."""
    groups = {}
    for row, result in known:
        groups.setdefault(row.packages[0], []).append((row, result))
    right = sum(1 for _, result in known if result["right"])
    limited = sum(1 for row, result in known if is_limited(row, result))
    kinds = {
        charts.GOOD: f"ends as on a GPU: {right - limited}",
        charts.FAIR: f"ends as on a GPU, the verdict names a limit: {limited}",
        charts.BAD: f"ends differently: {len(known) - right}",
    }
    parts = [charts.draw_text(24, 32, f"{len(known)} programs by package", size=16, weight=600)]
    x = 30
    for color, words in kinds.items():
        parts += [charts.draw_dot(x, 58, color, words), charts.draw_text(x + 11, 62, words, charts.DIM)]
        x += 40 + 6.6 * len(words)
    y, left, step, columns, single = 92, 160, 14, 40, []
    for package, programs in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        dots = []
        for row, result in programs:
            color = charts.BAD if not result["right"] else charts.FAIR if is_limited(row, result) else charts.GOOD
            dots.append((list(kinds).index(color), color, f"{row.model}, {row.setting}, torch {row.torch}, {row.gpu}"))
        if len(dots) == 1:
            single.append((package, *dots[0][1:]))
            continue
        parts.append(charts.draw_text(left - 20, y + 4, f"{package} {len(programs)}", anchor="end"))
        for place, (_, color, title) in enumerate(sorted(dots, key=lambda dot: dot[0])):
            parts.append(
                charts.draw_dot(left + step * (place % columns), y + step * (place // columns), color, title, 4.5)
            )
        y += 22 + step * ((len(programs) - 1) // columns)
    parts.append(charts.draw_text(24, y + 18, "packages with one program", charts.DIM))
    for place, (package, color, title) in enumerate(single):
        x, line = 30 + 234 * (place % 3), y + 42 + 22 * (place // 3)
        parts += [charts.draw_dot(x, line, color, title, 4.5), charts.draw_text(x + 12, line + 4, package)]
    y += 42 + 22 * ((len(single) + 2) // 3)
    label = f"{right} of {len(known)} programs end as on a GPU; the verdict of {limited} of these names a limit."
    return charts.render_svg(734, y + 6, label, parts), label


def render_misses(known):
    missed = [(row, result) for row, result in known if not result["right"]]
    if not missed:
        return "Every program ends as on a GPU."
    rows = []
    for row, result in missed:
        cause = row.cause or "; ".join(result["complaints"])
        rows.append([package_of(row, result), row.model, row.setting, row.torch, row.gpu, cause])
    return charts.render_table(["package", "model", "setting", "torch", "GPU", "difference and cause"], rows)


def render_files(found, history, at):
    """The text of each file that is made from the results, by its path."""
    known = current(found)
    right = sum(1 for _, result in known if result["right"])
    limited = sum(1 for row, result in known if is_limited(row, result))
    packages = {package for row, _ in known for package in row.packages}
    largest, peak = max(known, key=lambda pair: pair[1]["peak_allocated"])
    seconds = [result["cpu_seconds"] for _, result in known]
    host = [result["host_bytes"] for _, result in known]
    chart, label = draw_chart(known)
    page = OPENING.format(
        rows=len(known),
        right=right,
        share=100 * right / len(known),
        wrong=len(known) - right,
        unlimited=right - limited,
        limited=limited,
        branches=sum(1 for row, result in known if result["right"] and BRANCHES.search(" ".join(result["limits"]))),
        packages=len(packages),
        torches=", ".join(sort_versions(row.torch for row, _ in known)),
        gpus=", ".join(sorted({row.gpu for row, _ in known})),
        most=size(peak["peak_allocated"]),
        largest=f"{largest.model}, {largest.setting}",
        median=statistics.median(seconds),
        high=charts.quantile(seconds, 0.95),
        host=size(statistics.median(host)),
        host_most=size(max(host)),
        label=label,
        misses=render_misses(known),
    )
    rows, lines = [], []
    for row, result in known:
        peak = f"{size(result['peak_allocated'])} ({size(result['most_in_use'])})" if result["most_in_use"] else "–"
        described = [package_of(row, result), row.model, row.setting, row.torch, row.gpu]
        cost = [f"{result['cpu_seconds']:.0f}", size(result["host_bytes"]), stored.cell(result, history, at)]
        rows.append([*described, state(row, result), peak, *cost])
        bytes_used = [result["peak_allocated"], result["peak_reserved"], result["most_in_use"]]
        ended = [row.outcome, result["outcome"], "yes" if result["right"] else "no", state(row, result)]
        cost = [result["cpu_seconds"], result["host_bytes"], result["commit"]]
        lines.append([row.name, *described, *ended, *bytes_used, *cost])
    head = ["package", "model", "setting", "torch", "GPU", "result", "peak (in use)", "CPU s", "host", "commit"]
    every = ALL.format(
        ages=stored.sentence(history, [result for _, result in known], at),
        filter=charts.FILTER,
        table=charts.render_table(head, rows),
    )
    head = ["program", "package", "model", "setting", "torch", "gpu", "expected", "outcome", "works", "result"]
    head += ["peak_allocated", "peak_reserved", "most_in_use", "cpu_seconds", "host_bytes", "commit"]
    return {PAGE: page.lstrip(), ROWS_PAGE: every.lstrip(), TABLE: charts.render_csv(head, lines), CHART: chart}


def check(found, history):
    failures = 0
    if missing := [row.name for row in ROWS if row.name not in found]:
        failures += 1
        print(f"without a result, so not on the page: {', '.join(missing)}")
    if changed := [row.name for row in ROWS if row.name in found and found[row.name]["digest"] != digest(row)]:
        failures += 1
        print(f"changed since they were run: {', '.join(changed)}")
    if not missing and not changed:
        text = ROWS_PAGE.read_text() if ROWS_PAGE.exists() else ""
        files = render_files(found, history, stored.marked_commit(text))
        if different := charts.list_differences(files, ROOT):
            failures += 1
            print(f"{', '.join(different)}: not what the results give; run tests/compat/run.py --page")
    failures += len(stored.check(history, [(row.name, result) for row, result in current(found)]))
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--torch", default="", help="rows of this torch")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--gpus", choices=["one", "several"], help="rows on one GPU, or on several")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--environment", metavar="VERSION", choices=[*PACKAGES, *OWN, *THEN])
    parser.add_argument("--environments", type=Path, default=Path("~/.cache/tonnage-compat").expanduser())
    parser.add_argument("--python", type=Path, help="this Python, whatever the row's torch")
    parser.add_argument("--tonnage", default=os.environ.get("TONNAGE", str(ROOT / "target" / "debug" / "tonnage")))
    parser.add_argument("--at-most", type=int, default=len(ROWS), help="end after so many rows")
    arguments = parser.parse_args()
    if arguments.environment:
        make(arguments.environments, arguments.environment)
        return 0
    found = results()
    history = stored.History()
    if arguments.page:
        charts.write_files(render_files(found, history, history.code_commit()))
        return 0
    if arguments.check:
        return check(found, history)
    stamp = {}
    if not arguments.ci:
        history.check_binary(arguments.tonnage)
        stamp = history.stamp()
    missing, wrong, done = set(), [], 0
    chosen = ROWS
    if arguments.ci:
        chosen = [row for row in ROWS if row.ci]
        chosen = chosen if os.environ.get("PROGRAMS") == "all" else chosen[::2]
    for row in chosen:
        if arguments.only not in row.name or arguments.torch not in ("", row.torch):
            continue
        gpus = "several" if {"--gpus", "--world-size"} & set(row.options) else "one"
        if arguments.gpus not in (None, gpus):
            continue
        old = found.get(row.name)
        if old and old["digest"] == digest(row) and not (arguments.again or arguments.ci):
            continue
        if done >= arguments.at_most:
            break
        environment = row.environment or f"torch-{row.torch}"
        python = arguments.python or arguments.environments / environment / "bin" / "python"
        if not python.exists():
            missing.add(environment)
            continue
        result, printed = judge(row, arguments.tonnage, python)
        done += 1
        mark = "right" if result["right"] else "WRONG: " + "; ".join(result["complaints"])
        print(f"{row.name} ({row.torch}): {mark}; {result['cpu_seconds']} s, {size(result['host_bytes'])}", flush=True)
        if not result["right"]:
            wrong.append(row.name)
            print("    " + "\n    ".join(printed.splitlines()[-15:]), flush=True)
        if not arguments.ci:
            stored.append_result(RESULTS, {**result, **stamp})
    if missing:
        print(f"left out, without an environment: {', '.join(sorted(missing))}")
    print(f"{done - len(wrong)} passed, {len(wrong)} failed")
    if not arguments.ci and done:
        charts.write_files(render_files(results(), history, history.code_commit()))
    return 1 if arguments.ci and wrong else 0


if __name__ == "__main__":
    sys.exit(stored.end_with(main))
