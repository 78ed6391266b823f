# SPDX-License-Identifier: MIT OR Apache-2.0
"""Changes made inside the process against the same changes written by hand: the lines that the verdict printed.

For each script there is one run as it is, one run for each change, and one run
in which a process for each change runs a copy of the script with the printed
lines in it. All but the first have a GPU on which the script as it is does not
fit.
"""

import json
import subprocess
from dataclasses import dataclass

import pytest
from conftest import PYTHON, SCRIPTS, TONNAGE, environment

# Runs each script in a process of its own.
DRIVER = """
import subprocess, sys
for script in sys.argv[1:]:
    print("ended", subprocess.run([sys.executable, script]).returncode, file=sys.stderr)
"""


@dataclass
class Case:
    change: str
    script: str
    # The comment of the script behind which the lines are written; none if the change has edits.
    after: str | None = None


CASES = [
    Case("optimizer-fused", "changed_mlp.py"),
    Case("checkpoint-blocks", "changed_gpt.py", "# made"),
    Case("autocast-bf16", "changed_gpt.py", "# made"),
]


def run(folder, name, *options, command):
    line = [TONNAGE, "run", "--json", "--no-progress", "-o", str(folder / f"{name}.tonnage"), *options, "--", *command]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=environment(), cwd=folder)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


def by_hand(text, change, after):
    """The script with the edits, or else the lines, that the verdict printed."""
    if after is None:
        lines = text.splitlines()
        assert change["edits"], f"no edit is certain: {change}"
        for edit in change["edits"]:
            assert lines[edit["line"] - 1] == edit["old"]
            lines[edit["line"] - 1] = edit["new"]
        return "\n".join(lines)
    marks = [line for line in text.splitlines() if line.strip() == after]
    assert len(marks) == 1, f"{after} is not there once"
    indent = marks[0][: -len(marks[0].lstrip())]
    return text.replace(marks[0], "\n".join(f"{indent}{line}" for line in change["lines"]))


@pytest.fixture(scope="session")
def results(request, tmp_path_factory):
    """What the runs of the cases that were selected gave, by change."""
    chosen = [
        item.callspec.params["case"] for item in request.session.items if "case" in getattr(item, "fixturenames", ())
    ]
    found = {}
    for script in dict.fromkeys(case.script for case in chosen):
        folder = tmp_path_factory.mktemp(script.removesuffix(".py"))
        cases = [case for case in chosen if case.script == script]
        text = (SCRIPTS / script).read_text()
        (folder / script).write_text(text)
        plain, _ = run(folder, "plain", command=[PYTHON, script])
        assert plain["outcome"] == "fits"
        capacity = plain["margin"]["smallest"] - (2 << 20)
        size = ["--capacity", str(capacity)]
        refused, _ = run(folder, "refused", *size, "--stop-at-oom", command=[PYTHON, script])
        assert refused["outcome"] == "does_not_fit"
        copies = {}
        for case in cases:
            verdict, errors = run(folder, case.change, *size, "--change", case.change, command=[PYTHON, script])
            found[case.change] = {"plain": plain, "changed": verdict, "errors": errors}
            (told,) = verdict["changes"]
            assert told["applied"], told
            copy = folder / f"{case.change}.py"
            copy.write_text(by_hand(text, told, case.after))
            copies[case.change] = str(copy)
        (folder / "driver.py").write_text(DRIVER)
        together, errors = run(folder, "by-hand", *size, command=[PYTHON, "driver.py", *copies.values()])
        ends = [line for line in errors.splitlines() if line.startswith("ended ")]
        assert len(ends) == len(copies) and len(together["devices"]) == len(copies), errors
        for change, end, device in zip(copies, ends, together["devices"]):
            found[change]["by_hand"] = {"fits": end == "ended 0", "device": device, "errors": errors}
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.change)
def test_a_change_gives_what_the_printed_lines_give(case, results):
    result = results[case.change]
    changed, by_hand = result["changed"], result["by_hand"]
    assert by_hand["fits"], by_hand["errors"]
    assert changed["outcome"] == "fits", result["errors"]
    ours, theirs = changed["devices"][0], by_hand["device"]
    for figure in ("peak_allocated", "peak_used"):
        assert ours[figure] == theirs[figure], (figure, ours[figure], theirs[figure])
