# SPDX-License-Identifier: MIT OR Apache-2.0
"""Holds dry runs against published figures of real GPUs and writes docs/fidelity.md and the files beside it.

    python3 tests/fidelity/run.py                   runs the jobs that have no result
    python3 tests/fidelity/run.py --only timm       those whose name has `timm`; with --again even if they have one
    python3 tests/fidelity/run.py --fetch timm      clones a source into the folder of sources
    python3 tests/fidelity/run.py --page            writes summary, plot, tables and CSV from the results that are there
    python3 tests/fidelity/run.py --check           fails if a page does not agree with the results, if a job has no
                                                    result and is not in not_run.toml, or if a result is too old

A job runs a published script and gives figures, each with the published value and the one of the dry run. Figures come
from the output of the script. The verdict and the exit code do not decide them, so the margin does not matter. Results
are appended to results.jsonl, so it can be ended at any time. Environments are those of tests/compat.
"""

import argparse
import hashlib
import inspect
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "results"))

import charts  # noqa: E402
import jobs  # noqa: E402
import page as pages  # noqa: E402
import serving  # noqa: E402
import stored  # noqa: E402
from sources import SOURCES, get  # noqa: E402

RESULTS = HERE / "results.jsonl"
PAGE = ROOT / "docs" / "fidelity.md"
#: Files that are made as a whole: all comparisons as a table and as CSV, and the plot.
ROWS, TABLE = ROOT / "docs" / "fidelity-rows.md", ROOT / "docs" / "fidelity.csv"
PLOT = ROOT / "docs" / "assets" / "fidelity.svg"
#: Jobs without a result of their present code, with the reason of each.
NOT_RUN = HERE / "not_run.toml"
#: Pages that repeat figures of PAGE.
REPEATED = (ROOT / "README.md", ROOT / "docs" / "concepts" / "limits.md")
BEGIN, END = "<!-- figures: begin, made by tests/fidelity/run.py -->", "<!-- figures: end -->"
MISSES, MISSES_END = "<!-- misses: begin, made by tests/fidelity/run.py -->", "<!-- misses: end -->"
OPENING = """
# Accuracy: all comparisons

<!-- page not run: made by tests/fidelity/run.py -->

This page lists every comparison of [Accuracy](fidelity.md), whether it agrees or not. The same rows with exact values
are in [fidelity.csv](fidelity.csv).

{ages}

{missing}

## Figures

{filter}

{rows}

## Server logs

At startup, vLLM prints the memory of its weights, its profiling run, and its KV cache.
[Accuracy]({section}) describes how the logs were repeated.

{logs}

## Commands

{commands}
"""


class Context:
    """How a job runs `tonnage`, and where it finds its source."""

    def __init__(self, arguments, job, folder):
        self.tonnage, self.environments, self.job = arguments.tonnage, arguments.environments, job
        self.source = (arguments.sources / job.source).resolve()
        self.folder = folder
        self.drivers = HERE / "drivers"
        self.verdict, self.commands = {}, []

    def python(self):
        return self.environments / (self.job.environment or f"torch-{self.job.torch}") / "bin" / "python"

    def run(self, *command, options=(), cwd=None, seconds=1500, **variables):
        """The text that the script wrote; the verdict is kept in `self.verdict`."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_", "TORCH"))
        }
        # The figures of some jobs are files that the job writes, all of them below its working directory.
        line = [self.tonnage, "run", "--json", "--no-progress", "--side-effects", "--gpu", self.job.gpu, *options]
        line += ["--force", "-o", str(self.folder / "out.tonnage"), "--", str(self.python()), *map(str, command)]
        shown = [f"{name}={value}" for name, value in variables.items()]
        shown += ["tonnage run", "--gpu", self.job.gpu, *options, "--", "python", *map(str, command)]
        text = re.sub(re.escape(str(self.source)) + r"(?![\w/-])", ".", " ".join(shown).replace(f"{self.source}/", ""))
        text = text.replace(str(self.source.parent), "..")
        self.commands.append(text.replace(str(HERE), "tests/fidelity"))
        with open(self.folder / "out", "w+") as out, open(self.folder / "err", "w+") as err:
            child = subprocess.Popen(
                line,
                cwd=cwd or self.folder,
                env={**kept, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
            )
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            out.seek(0)
            err.seek(0)
            text, self.text = out.read(), err.read()
        try:
            self.verdict = json.loads(text)
        except ValueError:
            self.verdict = {}
        return self.text


def digest(job):
    """Changes with the code of the job."""
    return hashlib.sha256((inspect.getsource(job.measure) + repr(job.key())).encode()).hexdigest()[:16]


def results():
    return stored.read_results(RESULTS, "job")


def current(found):
    return [
        (job, found[job.name]) for job in jobs.JOBS if job.name in found and found[job.name]["digest"] == digest(job)
    ]


def not_run():
    """The reason of each job that has no result, by its name."""
    groups = tomllib.loads(NOT_RUN.read_text())["jobs"]
    return {name: group["reason"] for group in groups for name in group["names"]}


def without_result(known, reasons):
    """Where jobs without a result and the jobs of not_run.toml are not the same."""
    done, names = {job.name for job, _ in known}, [job.name for job in jobs.JOBS]
    differences = {
        "without a result, and without a reason in not_run.toml": [
            name for name in names if name not in done and name not in reasons
        ],
        "in not_run.toml, but with a result": [name for name in reasons if name in done],
        "in not_run.toml, but not a job": [name for name in reasons if name not in names],
    }
    return [f"{what}: {', '.join(found)}" for what, found in differences.items() if found]


def between(page, begin, end, text):
    return re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n\n{text}\n{end}", page, flags=re.S)


def render_files(before, history, at):
    """The text of each file that is made from the results, by its path."""
    known = current(results())
    scripts = [(job, result) for job, result in known if job.measure is not serving.measure]
    logs = [(log, result) for job, result in known for log in serving.LOGS if log.name == job.name]

    def commit(result):
        return stored.cell(result, history, at)

    counts = Counter(not_run().values())
    missing = f"{len(jobs.JOBS) - len(known)} of {len(jobs.JOBS)} jobs have no result of their present code:"
    reasons = "\n".join(f"* {count}: {reason}." for reason, count in counts.items())
    plot, label = pages.draw_plot(scripts)
    opening = f"{pages.summary(scripts, serving.summarize_logs(logs))}\n\n![{label}](assets/{PLOT.name})"
    text = between(before, BEGIN, END, f"{opening}\n")
    text = between(text, MISSES, MISSES_END, pages.render_misses(scripts) + "\n")
    rows = OPENING.format(
        ages=stored.sentence(history, [result for _, result in known], at),
        missing=f"{missing}\n\n{reasons}",
        filter=charts.FILTER,
        rows=pages.render_rows(scripts, commit),
        section=serving.SECTION,
        logs=serving.table(logs, commit),
        commands="\n".join(pages.commands(scripts)),
    )
    return {PAGE: text, ROWS: rows.lstrip(), TABLE: pages.render_csv(scripts, logs), PLOT: plot}


def repeated(known):
    """The words about thresholds and differences on the pages of REPEATED."""
    scripts = [(job, result) for job, result in known if job.measure is not serving.measure]
    rows = [(job, figure) for job, result in scripts for figure in result["figures"]]
    number, right, larger, uncertain = pages.thresholds_of(rows)
    median = statistics.median(pages.differences(figure for _, figure in rows)["allocated memory"])
    return [
        f"a median difference of {median:.3f} %",
        f"{right} of {number} out-of-memory thresholds",
        f"{larger - uncertain} of the {number - right} misses are false *fits*",
    ]


def check(history):
    failures, before, known = 0, PAGE.read_text(), current(results())
    if differences := without_result(known, not_run()):
        failures += 1
        print("\n".join(differences))
    else:
        files = render_files(before, history, stored.marked_commit(ROWS.read_text()))
        if different := charts.list_differences(files, ROOT):
            failures += 1
            print(f"{', '.join(different)}: not what the results give; run tests/fidelity/run.py --page")
    for page in REPEATED:
        for words in repeated(known):
            if words not in " ".join(page.read_text().split()):
                failures += 1
                print(f"{page.relative_to(ROOT)} does not have “{words}”, as the results give")
    failures += len(stored.check(history, [(job.name, result) for job, result in known]))
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--torch", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--at-most", type=int, default=len(jobs.JOBS))
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--fetch", choices=[name for name, (_, commit, _) in SOURCES.items() if commit])
    parser.add_argument("--sources", type=Path, default=Path("~/.cache/tonnage-fidelity").expanduser())
    parser.add_argument("--environments", type=Path, default=Path("~/.cache/tonnage-compat").expanduser())
    parser.add_argument("--tonnage", default=os.environ.get("TONNAGE", str(ROOT / "target" / "debug" / "tonnage")))
    arguments = parser.parse_args()
    if arguments.fetch:
        arguments.sources.mkdir(parents=True, exist_ok=True)
        get(arguments.sources, arguments.fetch)
        return 0
    history = stored.History()
    if arguments.page:
        charts.write_files(render_files(PAGE.read_text(), history, history.code_commit()))
        return 0
    if arguments.check:
        return check(history)
    history.check_binary(arguments.tonnage)
    stamp = history.stamp()
    found, done, missing = results(), 0, set()
    for job in jobs.JOBS:
        if arguments.only not in job.name or arguments.torch not in ("", job.torch) or done >= arguments.at_most:
            continue
        if not arguments.again and job.name in found and found[job.name]["digest"] == digest(job):
            continue
        with tempfile.TemporaryDirectory(prefix="fidelity-") as folder:
            context = Context(arguments, job, Path(folder))
            if not context.python().exists() or (SOURCES[job.source][1] and not context.source.exists()):
                missing.add(f"{job.source} with torch {job.torch}")
                continue
            began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            try:
                figures, problem = job.measure(context, *job.arguments), None
            except Exception as error:
                figures, problem = [], f"{type(error).__name__}: {error}"
                print("    " + "\n    ".join(getattr(context, "text", "").splitlines()[-12:]))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        done += 1
        result = {
            "job": job.name,
            **stamp,
            "digest": digest(job),
            "torch": context.verdict.get("torch", job.torch),
            "gpu": job.gpu,
            "command": context.commands[-1] if context.commands else "",
            "figures": figures,
            "problem": problem,
            "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        }
        agree = sum(1 for figure in figures if figure["real"] == figure["dry"])
        print(
            f"{job.name}: {agree} of {len(figures)} equal; {problem or ''} {time.monotonic() - began:.0f} s", flush=True
        )
        for figure in figures:
            if figure["real"] != figure["dry"]:
                print(f"    {figure['what']}: real {figure['real']}, dry {figure['dry']} {figure['unit']}", flush=True)
        stored.append_result(RESULTS, result)
    if missing:
        print(f"left out, without a source or an environment: {', '.join(sorted(missing))}")
    print(f"{done} done")
    return 0


if __name__ == "__main__":
    sys.exit(stored.end_with(main))
