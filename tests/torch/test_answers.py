# SPDX-License-Identifier: MIT OR Apache-2.0
"""Programs of which the truth is known, held against what is said of them: the slice of `answers/rate.py` for CI."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import PYTHON, SCRIPTS, TONNAGE

sys.path.insert(0, str(SCRIPTS.parent / "answers"))
from judge import Judge
from table import PROGRAMS

# What is not said rightly yet.
NOT_YET = """
    adam_states adam_temporaries adapters accumulation attention_scores batch_doubles by_a_hair cache_by_cat
    evaluation_graph evaluation_losses evaluation_outputs fits_with_room gradient_clones hidden_state hook_keeps
    kept_exception larger_each_time llama_8b logits managed micro_batches moving_average one_after_another outputs_kept
    pinned_copies pinned_holes reference_model retain_graph retained_graphs running_total separate_layers serve
    side_stream_stranded smaller_retry state_copy stream_ordered validation_batch without_torch long_sample real_gpu
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
