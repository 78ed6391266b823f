# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the programs of docs/compatibility.md and writes the page.

    python3 tests/compat/run.py                     runs the rows whose result is missing or out of date
    python3 tests/compat/run.py --only gpt --again  runs rows whose name has `gpt`, whether or not they have a result
    python3 tests/compat/run.py --ci                runs the slice of CI and fails if a row is not as on a GPU
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
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "results"))

import stored  # noqa: E402
from environments import OWN, PACKAGES, THEN, make  # noqa: E402
from rows import ROWS  # noqa: E402

RESULTS = HERE / "results.jsonl"
PAGE = ROOT / "docs" / "compatibility.md"
GIB = 1 << 30
OPENING = """
# Tested programs

<!-- page not run: made by tests/compat/run.py, which takes an hour and other torches -->

{right} of {rows} programs end as on a GPU, run with `tonnage run --margin 0` on a machine without a GPU. The verdict of
{limited} of these names a limit; {wrong} end differently. PyTorch: {torches}. Other packages: {packages}.

*Works* means that the script ends as on a GPU, with the same exit code, and with the same output where it does not
depend on the values of kernels. The verdict is the expected one: the program fits, or it runs out of memory. With a
margin of 0, little headroom does not make a verdict uncertain. *Limits* are those that the verdict reports. The outcome
of each program on a GPU follows from its source; none of them was run on a real GPU.

*Peak* is the memory of PyTorch's blocks, and in brackets the memory in use on the device with cache and context. CPU
time and host memory (of the largest process) cover the whole dry run, with a debug build of tonnage on two shared
cores. Weights are random, and the programs generate their data, because nothing is downloaded.

{ages}

The programs are in `tests/compat/programs`, the expected outcomes in `tests/compat/rows.py`, and the results in
`tests/compat/results.jsonl`. The first command runs the programs that have no result yet; you can stop it and start it
again. The second creates the environment of a PyTorch version, which needs about 5 GB:

```sh
python3 tests/compat/run.py
python3 tests/compat/run.py --environment 2.6.0
```
"""
# More than any program needs; keeps a mistake from taking the machine down. Of one process, in real memory.
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
    """What `tonnage explain` says of the recording, so that its sentences are seen too."""
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
    # What a rank prints may stand behind the progress bar of another, on the same line.
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
    parts += result["limits"]
    if result["unmodelled"]:
        parts.append("not modelled: " + ", ".join(f"`{name}`" for name in result["unmodelled"][:3]))
    return "works" + ("; limits: " + "; ".join(parts) if parts else "")


def current(found):
    """The rows whose result is of their present program."""
    return [(row, found[row.name]) for row in ROWS if row.name in found and found[row.name]["digest"] == digest(row)]


def page(found, history, at):
    known = current(found)
    right = [result for _, result in known if result["right"]]
    limited = sum(1 for row, result in known if "limits:" in state(row, result) and result["right"])
    torches = sorted({row.torch for row, _ in known}, key=lambda text: [int(part) for part in text.split(".")])
    packages = sorted({package for row, _ in known for package in row.packages} - {"torch"})
    names = {
        "rows": len(known),
        "right": len(right),
        "limited": limited,
        "wrong": len(known) - len(right),
        "torches": ", ".join(torches),
        "packages": ", ".join(packages),
        "ages": stored.sentence(history, [result for _, result in known], at),
    }
    lines = [OPENING.format(**names).strip(), ""]
    lines += ["| package | model | setting | torch | GPU | result | peak (in use) | CPU s | host | commit |"]
    lines += ["|---" * 10 + "|"]
    for row, result in known:
        version = result["versions"].get(row.packages[0], "")
        name = row.packages[0] if row.packages[0] == "torch" else f"{row.packages[0]} {version}"
        peak = f"{size(result['peak_allocated'])} ({size(result['most_in_use'])})" if result["most_in_use"] else "–"
        cells = [name, row.model, row.setting, row.torch, row.gpu, state(row, result).replace("|", "/"), peak]
        cells += [f"{result['cpu_seconds']:.0f}", size(result["host_bytes"]), stored.cell(result, history, at)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def check(found, history):
    failures = 0
    if missing := [row.name for row in ROWS if row.name not in found]:
        failures += 1
        print(f"without a result, so not on the page: {', '.join(missing)}")
    if changed := [row.name for row in ROWS if row.name in found and found[row.name]["digest"] != digest(row)]:
        failures += 1
        print(f"changed since they were run: {', '.join(changed)}")
    if not missing and not changed:
        text = PAGE.read_text() if PAGE.exists() else ""
        if text != page(found, history, stored.marked_commit(text)):
            failures += 1
            print("docs/compatibility.md is not what the results give: run tests/compat/run.py --page")
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
        PAGE.write_text(page(found, history, history.code_commit()))
        return 0
    if arguments.check:
        return check(found, history)
    stamp = {}
    if not arguments.ci:
        history.check_binary(arguments.tonnage)
        stamp = history.stamp()
    missing, wrong, done = set(), [], 0
    for row in ROWS:
        if arguments.only not in row.name or arguments.torch not in ("", row.torch) or (arguments.ci and not row.ci):
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
        PAGE.write_text(page(results(), history, history.code_commit()))
    return 1 if arguments.ci and wrong else 0


if __name__ == "__main__":
    sys.exit(stored.end_with(main))
