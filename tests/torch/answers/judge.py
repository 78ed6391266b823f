# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares the answers of tonnage about a program with the truth.

Shares no code with tonnage: it starts the command, reads its JSON and its text, applies each proposal for real to the
whole job, and compares.
"""

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from table import GIB, MIB, Program

UNLIMITED = 1 << 40
# How far a figure may be from what is promised.
NEAR = 0.01
# How far apart the bounds of a promise may be.
WIDE = 2
# Lines of what explain prints, at 100 columns.
SCREEN = 30
# Advice that changes what a program computes.
OTHER_RESULT = r"halve|cap the|split or cap|truncates"
COLUMNS = ("verdict", "need", "cause", "headline", "holder", "advice", "fix")


@dataclass
class Row:
    """The right and the wrong answers for one program."""

    program: Program
    # A mark for each column: True, False, or None where there is nothing to judge.
    marks: dict = field(default_factory=lambda: dict.fromkeys(COLUMNS))
    # The errors, in words, with the column before each.
    complaints: list = field(default_factory=list)
    # Proposals that were applied for real, and how many kept their word.
    applied: int = 0
    kept: int = 0
    text: str = ""

    def hold(self, column, truth, complaint):
        """A mark is right only if all that is held against it is."""
        self.marks[column] = bool(truth) and self.marks[column] is not False
        if not truth:
            self.complaints.append(f"{column}: {complaint}")
        return bool(truth)

    @property
    def right(self):
        return not self.complaints


class Judge:
    def __init__(self, tonnage, python, thorough=True):
        self.tonnage, self.python, self.thorough = tonnage, python, thorough
        self.version = 0

    def call(self, *words, environment=None, folder=None, timeout=900):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}
        kept |= {"NO_COLOR": "1", "COLUMNS": "100", "TONNAGE_GPU": "h100-80gb", **(environment or {})}
        return subprocess.run(
            [self.tonnage, *words], capture_output=True, text=True, timeout=timeout, env=kept, cwd=folder
        )

    def run(self, program, folder, options=None, **environment):
        """A dry run: its exit code, its verdict and its recording."""
        recording = Path(folder) / f"{len(list(Path(folder).glob('*.tonnage')))}.tonnage"
        options = program.options if options is None else options
        command = [self.python, str(program.path), *program.arguments]
        done = self.call(
            "run", "--json", "--margin", "0", "-o", str(recording), *options, "--", *command,
            environment={**program.environment, **environment}, folder=folder,
        )  # fmt: skip
        try:
            verdict = json.loads(done.stdout)
        except ValueError:
            raise AssertionError(f"no verdict, exit {done.returncode}: {done.stderr[-600:]}") from None
        return done.returncode, verdict, recording

    def explain(self, recording):
        """The explanation as JSON and as text; None where there is nothing to explain."""
        done = self.call("explain", "--json", str(recording))
        if done.returncode not in (0, 1):
            return None, done.stderr
        return json.loads(done.stdout), self.call("explain", str(recording)).stdout

    def judge(self, program):
        row = Row(program)
        with tempfile.TemporaryDirectory() as folder:
            verdict = None
            recording = program.recording
            if recording is None:
                code, verdict, recording = self.run(program, folder)
                self.version = verdict["schema_version"]
                self.judge_verdict(row, code, verdict)
            told, row.text = self.explain(recording)
            if verdict and "next" in verdict:
                row.text += str(verdict["next"])
            self.judge_explanation(row, told, verdict)
            if verdict:
                self.judge_margin(row, verdict, folder)
            if told and verdict:
                self.judge_need(row, verdict, told, folder)
            if told:
                self.judge_fixes(row, told, folder)
        return row

    def judge_verdict(self, row, code, verdict):
        program = row.program
        row.hold("verdict", verdict["outcome"] == program.outcome, f"{verdict['outcome']}, is {program.outcome}")
        exit_code = {"fits": 0, "does_not_fit": 1, "failed": 2, "no_device": 0}[program.outcome]
        row.hold("verdict", code == exit_code, f"exit code {code}")
        for device in verdict["devices"]:
            parts = device["at_peak"]
            # Memory of other processes is not in use by this one.
            total = sum(parts[name] for name in parts if name not in ("used", "other_processes"))
            row.hold("verdict", parts["used"] == total, f"the parts {parts} are not {parts['used']}")
        if program.free is not None:
            free = least_free(verdict)
            context = verdict["context"]["bytes"] if verdict["devices"] else 0
            # A job that fills the device to the last byte leaves nothing, context or not; else the context is taken
            # too.
            expected = max(0, program.free - context)
            near = abs(free - expected) <= 4 * MIB
            row.hold("verdict", near, f"least free {size(free)}, is {size(expected)}")

    def judge_margin(self, row, verdict, folder):
        """The smallest device that is reported to be enough for a job that fits, by trying it and a smaller one."""
        smallest = (verdict.get("margin") or {}).get("smallest")
        if row.program.outcome != "fits" or not smallest or not self.thorough or not row.program.same_without_limit:
            return
        self.try_sizes(row, "verdict", smallest, folder)

    def try_sizes(self, row, column, capacity, folder):
        for share, right in ((1 + NEAR, 0), (1 - 3 * NEAR, 1)):
            code, _, _ = self.run(row.program, folder, [*sized(row.program, int(capacity * share)), "--stop-at-oom"])
            row.hold(column, code == right, f"with {share:.0%} of {size(capacity)} it ends with {code}")

    def judge_need(self, row, verdict, told, folder):
        """The need of the job: by its shapes, and by trying a device of that size and one that is a little smaller."""
        program = row.program
        if program.outcome != "does_not_fit":
            return
        capacity = verdict["capacity"]["bytes"]
        # A job that is fragmented need not need more than the device has.
        short = not {"TN102", "TN103"} & set(program.causes)
        needs = [answer["need"]["bytes"] for answer in (verdict, told) if answer.get("need")]
        if not row.hold("need", len(needs) == 2, "run and explain do not both say what the job needs"):
            return
        row.hold("need", needs[0] == needs[1], f"run says {size(needs[0])}, explain {size(needs[1])}")
        need = needs[0]
        if short:
            row.hold("need", need > capacity, f"{size(need)} is not more than the device's {size(capacity)}")
        context = verdict["context"]["bytes"]
        least = program.live + context
        row.hold("need", need >= least * (1 - NEAR), f"{size(need)}, by its shapes at least {size(least)}")
        if short:
            row.hold("need", need <= least * 1.35, f"{size(need)}, by its shapes about {size(least)}")
        if not self.thorough or not program.same_without_limit:
            return
        self.try_sizes(row, "need", need, folder)

    def judge_explanation(self, row, told, verdict):
        program = row.program
        if told is None:
            # A job that requested nothing has nothing to explain, and the output reports that.
            row.hold("cause", not program.causes, f"not explained: {row.text.strip()}")
            return
        ended = "out_of_memory" if program.outcome == "does_not_fit" else "ran"
        if program.recording and "oom" in program.name:
            ended = "out_of_memory"
        row.hold("cause", told["outcome"] == ended, f"{told['outcome']}, is {ended}")
        codes = [finding["code"] for finding in told["findings"]]
        # A shortage of memory is the class of a failure, not its cause; it is the cause if nothing else is reported.
        causes = [finding for finding in told["findings"] if finding["code"] != "TN101"] or told["findings"]
        first = causes[0] if causes else None
        if program.causes:
            found = first["code"] if first else "nothing"
            right = row.hold("cause", found in program.causes, f"{found}, is {' or '.join(program.causes)}")
            headline = row.text.splitlines()[0] if row.text else ""
            row.hold("headline", right and found in headline, f"does not name the cause: {headline}")
        allowed = {*program.causes, *program.also}
        if program.outcome == "does_not_fit":
            allowed.add("TN101")
        for code in codes:
            row.hold("cause", code in allowed, f"{code} is not true: {sentence_of(told, code)}")
        # The report of the cause: its finding and the proposals that answer it.
        said = [first, [fix for fix in told["fixes"] if first and fix["code"] == first["code"]]]
        if first and first["code"] == "TN101":
            said += told["holders"][:1]
        if program.holder:
            words = json.dumps(said)
            named = any(re.search(rf"\b{re.escape(name)}\b", words) for name in program.holder)
            row.hold("holder", named, f"{' or '.join(program.holder)} is not named")
        if program.line:
            lines = program.marked()
            near = any(names_line(said, program.path.name, line) for line in lines)
            row.hold("holder", near, f"line {' or '.join(map(str, lines))} is not named")
        words = row.text + "\n" + "\n".join(finding["sentence"] for finding in told["findings"])
        for pattern in program.wrong:
            match = re.search(f".*({pattern}).*", words, re.I)
            row.hold("advice", not match, f"says what is wrong: {match and match[0].strip()}")
        row.hold("advice", len(row.text.splitlines()) <= SCREEN, f"takes {len(row.text.splitlines())} lines")
        flat = re.sub(r"\s+", " ", row.text)
        for pattern in program.right:
            row.hold("advice", re.search(pattern, flat, re.I), f"does not say {pattern}")

    def judge_fixes(self, row, told, folder):
        """Every proposal is foreseen, those that are wanted are there, and each that can be applied keeps its word."""
        program = row.program
        met = set()
        for fix in told["fixes"]:
            known = [known for known in program.fixes if answers(known, fix)]
            paste = fix.get("paste") or ""
            setting = re.match(r"(?:export )?(PYTORCH_\w+)=(\S+)$", paste)
            device = re.match(r"--(capacity|gpu) (\S+)$", paste)
            words = f"{fix['code']} {fix['advice']}"
            # Where a job fits, a setting is worth a line if it saves something worth having.
            saves = setting and program.outcome == "fits" and fix["peak_after"] <= 0.95 * fix["peak_before"]
            if not row.hold("advice", known or device or saves, f"not known to be right: {words}"):
                continue
            met |= {id(known) for known in known}
            if self.version > 1 and re.search(OTHER_RESULT, fix["advice"]):
                row.hold("advice", fix["changes_result"], f"does not say that it changes the result: {words}")
            if program.recording:
                continue
            if not fix.get("whole_job", True):
                row.hold("fix", False, f"not of the whole job: {words}")
            options, variables = list(program.options), {}
            if setting:
                variables[setting[1]] = setting[2].strip("'\"")
            elif device and self.thorough:
                options = sized(program, device[2]) if device[1] == "capacity" else paste.split()
            elif variant := next((known.variant for known in known if known.variant), None):
                variables["FIXED"] = variant
            else:
                continue
            again = device or any(known.again for known in known)
            self.apply(row, fix, folder, options, variables, again)
        for fix in program.fixes:
            if fix.wanted:
                row.hold("advice", id(fix) in met, f"not proposed: {fix.code} {fix.words}")

    def apply(self, row, fix, folder, options, variables, again):
        row.applied += 1
        before = len(row.complaints)
        words = f"{fix['code']} {fix['advice']}"
        promised = fix["peak_after"]
        if fix["outcome"] == "does_not_fit":
            options = sized(row.program, UNLIMITED)
        code, verdict, recording = self.run(row.program, folder, options, **variables)
        row.hold("fix", code == 0, f"applied, the job ends with {code}: {words}")
        if code == 0 and fix["outcome"] in ("fits", "fits_only_if"):
            # The changed program has the margin that was promised, as near as its peak.
            room = verdict["margin"]["room"]
            most = sum(part["high"] for part in verdict["margin"]["uncounted"])
            near = NEAR * verdict["capacity"]["bytes"]
            kept = room >= most - near if fix["outcome"] == "fits" else abs(room - fix["room"]) <= near
            row.hold("fix", kept, f"promised {fix['outcome']} {fix['room']}, leaves {size(room)}: {words}")
        if not again:
            told, _ = self.explain(recording)
            done = [other for other in (told or {"fixes": []})["fixes"] if other["code"] == fix["code"]]
            row.hold("fix", fix["advice"] not in [other["advice"] for other in done], f"proposed again: {words}")
        if code == 0:
            measured = figure(verdict, fix["measure"])
            least = fix.get("peak_after_least", promised)
            kept = least * (1 - NEAR) <= measured <= promised * (1 + NEAR)
            row.hold("fix", kept, f"promised {size(least)} to {size(promised)}, is {size(measured)}: {words}")
            row.hold("fix", promised <= WIDE * least, f"{size(least)} to {size(promised)} says little: {words}")
        row.kept += len(row.complaints) == before


def sized(program, capacity):
    """The options of a program, with a device of another size."""
    options = list(program.options)
    if "--capacity" in options:
        at = options.index("--capacity")
        del options[at : at + 2]
    return [*options, "--capacity", str(capacity)]


def least_free(verdict):
    """The bytes that were free on the fullest device at its tightest."""
    if "devices_total" in verdict:
        devices = [device["least_free"] for device in verdict["devices_total"]]
    else:
        # Before there was one account: the figure of the headroom in its headline.
        used = {}
        for device in verdict["devices"]:
            used[device["device"]] = used.get(device["device"], 0) + device["peak_used"]
        devices = [max(0, verdict["capacity"]["bytes"] - used) for used in used.values()]
    return min(devices, default=verdict["capacity"]["bytes"])


def capacity_used(verdict):
    return verdict["capacity"]["bytes"] - least_free(verdict)


def figure(verdict, measure):
    """The peak of a run that a promise is held against."""
    if measure == "device":
        return capacity_used(verdict)
    return max(device[f"peak_{measure}"] for device in verdict["devices"])


def answers(known, fix):
    return re.fullmatch(known.code, fix["code"]) and re.search(
        known.words, fix["advice"] + (fix.get("paste") or ""), re.I
    )


def sentence_of(told, code):
    return next(finding["sentence"] for finding in told["findings"] if finding["code"] == code)


def names_line(said, file, line):
    """Whether a line is named anywhere in a report: as a place, or in words."""
    if isinstance(said, dict):
        if str(said.get("file", "")).endswith(file) and said.get("line") == line:
            return True
        return any(names_line(value, file, line) for value in said.values())
    if isinstance(said, list):
        return any(names_line(value, file, line) for value in said)
    return isinstance(said, str) and re.search(rf"{re.escape(file)}:{line}\b", said) is not None


def size(number):
    return f"{number / GIB:.2f} GiB" if number >= GIB else f"{number / MIB:.2f} MiB"
