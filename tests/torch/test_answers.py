# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs of which the truth is known, held against what is said of them: the slice of `answers/rate.py` for CI."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import PYTHON, SCRIPTS, TONNAGE

sys.path.insert(0, str(SCRIPTS.parent / "answers"))
from judge import Judge
from table import PROGRAMS

# What was last seen wrong, or has not been seen since it was mended.
NOT_YET = """
    activations batch_doubles by_a_hair cache_at_start cache_by_cat cache_in_module cached_reference checkpoint_file
    checkpointed_step contexts decoder evaluation_graph evaluation_outputs hidden_state hook_keeps kept_exception
    llama_8b logits long_sample micro_batches moving_average retain_graph retained_graphs separate_layers
    smaller_retry validation_batch
""".split()


@pytest.fixture(scope="module")
def rows(request):
    """A judgement of every program that was selected, two at a time."""
    judge = Judge(TONNAGE, PYTHON, thorough=False)
    items = [item for item in request.session.items if item.module is request.module]
    programs = [item.callspec.params["program"] for item in items]
    with ThreadPoolExecutor(2) as pool:
        yield {program.name: pool.submit(judge.judge, program) for program in programs if not skipped(program)}


def skipped(program):
    if program.name in NOT_YET:
        return "the answer is not right yet"
    if program.recording and not program.recording.exists():
        return "its recording is not here"
    return None


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program.ci], ids=lambda program: program.name)
def test_what_is_said_is_true(program, request):
    if reason := skipped(program):
        pytest.skip(reason)
    row = request.getfixturevalue("rows")[program.name].result()
    assert row.right, "\n".join([*row.complaints, "", row.text])
