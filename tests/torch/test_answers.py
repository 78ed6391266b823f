# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs with a known truth, compared with the answers of `tonnage explain`.

The list has one program for each cause and for each outcome without a cause. CI runs a third of it. With ANSWERS=all,
the list has every program that this environment can run, and all of them run.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import PYTHON, SCRIPTS, TONNAGE

sys.path.insert(0, str(SCRIPTS.parent / "answers"))
from judge import Judge
from table import PROGRAMS


@pytest.fixture(scope="module")
def rows(request):
    """A judgement of every program that was selected, two at a time."""
    judge = Judge(TONNAGE, PYTHON, thorough=False)
    items = [item for item in request.session.items if item.module is request.module]
    programs = [item.callspec.params["program"] for item in items]
    with ThreadPoolExecutor(2) as pool:
        yield {program.name: pool.submit(judge.judge, program) for program in programs if not skipped(program)}


def selected():
    """The programs to judge."""
    runs_all = os.environ.get("ANSWERS") == "all"
    seen, chosen = set(), []
    for program in PROGRAMS:
        kinds = set(program.causes or (program.outcome,))
        if program.ci and (runs_all or not kinds <= seen):
            seen |= kinds
            chosen.append(program)
    return chosen if runs_all else chosen[::3]


def skipped(program):
    if program.recording and not program.recording.exists():
        return "its recording is not here"
    return None


@pytest.mark.parametrize("program", selected(), ids=lambda program: program.name)
def test_what_is_said_is_true(program, request):
    if reason := skipped(program):
        pytest.skip(reason)
    row = request.getfixturevalue("rows")[program.name].result()
    assert row.right, "\n".join([*row.complaints, "", row.text])
