#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Judges what `tonnage explain` writes about the frozen programs by their truths, and prints a table.

    python3 tests/torch/causes/judge.py --tonnage target/debug/tonnage --python .venv/bin/python [--only p01]

Shares no code with tonnage: it starts the command, reads its JSON and its text, runs each planted program again with
FIXED=1, and compares. It knows no codes of findings: a finding is right if it names a holder or a marked line.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from truths import EVERYWHERE, TRUTHS, Truth

MIB = 1 << 20
NEAR_SIZE, NEAR_PROMISE, NEAR_TRUTH = 0.02, 0.01, 0.01
UNLIMITED = ("--capacity", "1TiB")
COLUMNS = ("outcome", "truth", "cause", "size", "promise", "harmless")
PEAKS = {"allocated": "peak_allocated", "reserved": "peak_reserved", "device": "peak_used"}
# Words that only a claim of avoidable memory contains.
WASTE = re.compile(
    r"\bleak|never used|used again|no longer (used|needed)|not needed|\bwast|keeps growing|for nothing"
    r"|grows (with|by|in|from|each|every)|(earlier|previous|past) (steps?|iterations?|batch(es)?)",
    re.IGNORECASE,
)


@dataclass
class Row:
    """The marks of one program: True, False, or None where there is nothing to judge."""

    truth: Truth
    marks: dict = field(default_factory=lambda: dict.fromkeys(COLUMNS))
    complaints: list = field(default_factory=list)

    def mark(self, column, right, complaint):
        self.marks[column] = bool(right) and self.marks[column] is not False
        if not right:
            self.complaints.append(f"{column}: {complaint}")


class Judge:
    def __init__(self, tonnage, python):
        self.tonnage, self.python = str(Path(tonnage).resolve()), os.path.abspath(python)

    def call(self, *words, folder, fixed=False):
        skipped = ("PYTORCH_", "CUDA_", "TONNAGE_", "FIXED")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(skipped)}
        environment |= {"NO_COLOR": "1", "COLUMNS": "100"} | ({"FIXED": "1"} if fixed else {})
        command = [self.tonnage, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=folder)

    def run(self, truth, folder, options, fixed=False):
        """The verdict of a dry run, and its recording."""
        recording = str(Path(folder) / f"{truth.name}-{len(os.listdir(folder))}.tonnage")
        words = ("--json", "--no-progress", "--margin", "0", "-o", recording, *options)
        done = self.call("run", *words, "--", self.python, str(truth.path), folder=folder, fixed=fixed)
        try:
            return json.loads(done.stdout), recording
        except ValueError:
            raise RuntimeError(f"no verdict, exit {done.returncode}: {done.stderr[-600:]}") from None

    def judge(self, truth):
        row = Row(truth)
        with tempfile.TemporaryDirectory() as folder:
            verdict, recording = self.run(truth, folder, truth.options)
            expected = "fits" if truth.fits else "does_not_fit"
            row.mark("outcome", verdict["outcome"] == expected, f"{verdict['outcome']}, is {expected}")
            done = self.call("explain", "--json", recording, folder=folder)
            if done.returncode not in (0, 1):
                row.mark("cause", False, f"explain ends with {done.returncode}: {done.stderr[-300:]}")
                return row
            explained = json.loads(done.stdout)
            text = self.call("explain", recording, folder=folder).stdout
            judge_statements(row, explained, text)
            if truth.planted:
                whole = verdict if truth.fits else self.run(truth, folder, enough_memory(truth))[0]
                fixed = self.run(truth, folder, enough_memory(truth), fixed=True)[0]
                judge_truth(row, whole, fixed)
                judge_cause(row, explained)
                judge_promise(row, explained, whole, fixed)
            else:
                judge_healthy(row, explained)
        return row


def enough_memory(truth):
    """Options for the same GPU with as much memory as the program needs."""
    return truth.options if truth.fits else (*truth.options[:2], *UNLIMITED)


def peak(verdict, measure):
    return verdict["devices"][0][PEAKS[measure]]


def measured_saving(whole, fixed, measure):
    return peak(whole, measure) - peak(fixed, measure)


def judge_truth(row, whole, fixed):
    """The truth itself: the saving from the shapes is what the two runs show, and both run to their end."""
    for name, verdict in (("", whole), ("FIXED ", fixed)):
        row.mark("truth", verdict["outcome"] == "fits", f"the {name}run without a limit ends with {verdict['ending']}")
    measured = measured_saving(whole, fixed, row.truth.measure)
    right = near(measured, row.truth.saving, NEAR_TRUTH)
    row.mark("truth", right, f"fixed, the peak is {size(measured)} lower, by the shapes {size(row.truth.saving)}")


def judge_cause(row, explained):
    truth = row.truth
    if not explained["findings"]:
        row.mark("cause", False, "no finding")
        return
    first = explained["findings"][0]
    row.mark("cause", names_cause(truth, first), f"{first['code']}: {first['sentence']}")
    right = any(near(first["bytes"], held, NEAR_SIZE) for held in (truth.held, *truth.also))
    row.mark("size", right, f"{size(first['bytes'])}, is {size(truth.held)}")


def names_cause(truth, finding):
    """Whether a finding names one of the holders or a marked line."""
    holder = finding["held_by"] or {}
    names = " ".join(holder.get(part) or "" for part in ("name", "function", "exception"))
    if any(is_word(name, names) for name in truth.holders):
        return True
    prose = f"{finding['headline'] or ''} {finding['sentence']}"
    # A short name may be a word of the sentence by chance.
    if any(len(name) > 3 and is_word(name, prose) for name in truth.holders):
        return True
    lines = marked_statements(truth)
    places = (finding["place"], holder.get("place"))
    return any(place and Path(place["file"]).name == truth.path.name and place["line"] in lines for place in places)


def is_word(name, text):
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def marked_statements(truth):
    """All lines of the simple statements that a mark is in: Python names the first line of a call or its own."""
    lines = set(truth.marked)
    for node in ast.walk(ast.parse(truth.path.read_text())):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            span = range(node.lineno, node.end_lineno + 1)
            if any(line in span for line in truth.marked):
                lines.update(span)
    return lines


def judge_promise(row, explained, whole, fixed):
    """The fix saves as much as the proposal for the first finding promises."""
    codes = [finding["code"] for finding in explained["findings"][:1]]
    fixes = [fix for fix in explained["fixes"] if fix["code"] in codes]
    if not fixes:
        row.mark("promise", False, "no proposal for the first finding")
        return
    first = fixes[0]
    measured = measured_saving(whole, fixed, first["measure"])
    for after in (first["peak_after"], first["peak_after_least"]):
        promised = first["peak_before"] - after
        right = near(promised, measured, NEAR_PROMISE)
        row.mark("promise", right, f"promises {size(promised)} of {first['measure']}, saves {size(measured)}")


def judge_statements(row, explained, text):
    """No sentence matches a pattern of the false ones."""
    row.mark("harmless", True, "")
    prose = "\n".join(
        [text, *(statement for part in explained["findings"] + explained["fixes"] for statement in prose_of(part))]
    )
    for pattern in (*EVERYWHERE, *row.truth.false):
        found = re.search(pattern, prose, re.IGNORECASE)
        if found:
            start, end = max(0, found.start() - 60), found.end() + 60
            row.mark("harmless", False, f"{pattern} in …{prose[start:end]!r}…")


def judge_healthy(row, explained):
    """No finding claims avoidable memory, except of variables that truly hold a value past its last use."""
    truth = row.truth
    row.mark("cause", True, "")
    for finding in explained["findings"]:
        if not any(WASTE.search(statement) for statement in prose_of(finding)):
            continue
        true = names_cause(truth, finding) and finding["bytes"] <= truth.held * (1 + NEAR_SIZE)
        row.mark("cause", true, f"{finding['code']}: {finding['sentence']}")


def prose_of(part):
    names = ("title", "headline", "sentence", "advice", "paste", "shown")
    return [part[name] for name in names if part.get(name)]


def near(value, expected, share):
    return abs(value - expected) <= share * abs(expected)


def size(count):
    return f"{count / MIB:.1f} MiB"


def print_table(rows):
    width = max(len(row.truth.name) for row in rows)
    print(f"{'program':{width}}  " + "  ".join(COLUMNS))
    signs = {True: "yes", False: "NO", None: "-"}
    for row in rows:
        marks = (f"{signs[row.marks[column]]:{len(column)}}" for column in COLUMNS)
        print(f"{row.truth.name:{width}}  " + "  ".join(marks).rstrip())
    for row in rows:
        for complaint in row.complaints:
            print(f"{row.truth.name}: {complaint}")
    for kind, group in (
        ("planted", [r for r in rows if r.truth.planted]),
        ("healthy", [r for r in rows if not r.truth.planted]),
    ):
        for column in COLUMNS:
            judged = [row.marks[column] for row in group if row.marks[column] is not None]
            if judged:
                print(f"{kind}, {column}: {sum(judged)} of {len(judged)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tonnage", required=True)
    parser.add_argument("--python", required=True, help="a Python with torch, transformers, lightning and torchmetrics")
    parser.add_argument("--only", action="append", metavar="NAME", help="programs whose name starts so")
    arguments = parser.parse_args()
    judge = Judge(arguments.tonnage, arguments.python)
    rows = []
    for truth in TRUTHS.values():
        if arguments.only and not truth.name.startswith(tuple(arguments.only)):
            continue
        try:
            rows.append(judge.judge(truth))
        except (RuntimeError, subprocess.TimeoutExpired, KeyError, IndexError, ValueError) as error:
            rows.append(Row(truth))
            rows[-1].mark("outcome", False, f"{type(error).__name__}: {error}")
        print(f"{truth.name}: {'right' if not rows[-1].complaints else 'wrong'}", file=sys.stderr, flush=True)
    if not rows:
        parser.error("no program has such a name")
    print_table(rows)
    return 1 if any(row.complaints for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
