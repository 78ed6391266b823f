# SPDX-License-Identifier: MIT OR Apache-2.0
"""A slice of the differential test: the real allocator and the policy answer alike; see `differential.py`.

Needs the example `torch_script`: `cargo build --release -p tonnage-alloc --example torch_script`, or the file that
`TORCH_SCRIPT` names.
"""

import differential
from conftest import PYTHON, TONNAGE

EVENTS = 300_000
# Every setting has a script; the start of torch is most of the time, so they are few and long.
EVENTS_PER_SCRIPT = 15_000
# The first round of this seed over all settings has every number of streams, and each of the other dimensions.
SEED = 1


def test_the_real_allocator_and_the_policy_answer_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("TONNAGE", TONNAGE)
    monkeypatch.setenv("TORCH_PYTHON", PYTHON)
    plans = differential.matrix(EVENTS_PER_SCRIPT, SEED)
    outcomes = differential.run_all(plans, EVENTS, tmp_path)
    for line in differential.summary(outcomes):
        print(line)
    assert not [outcome.problem for outcome in outcomes if outcome.problem]
    assert sum(outcome.events for outcome in outcomes) >= EVENTS
    plans = [outcome.plan for outcome in outcomes]
    assert {plan.name for plan in plans} == {plan.name for plan in differential.SETTINGS}
    assert {plan.streams for plan in plans} == set(range(1, 7))
    cells = {(plan.capacity < 2 * differential.GIB, plan.order, bool(plan.pools), plan.graphs) for plan in plans}
    assert all({cell[place] for cell in cells} == pair for place, pair in enumerate(DIMENSIONS))
    # Most scripts must reach their end, or little was compared.
    assert sum(bool(outcome.undefined) for outcome in outcomes) < len(outcomes) / 4


DIMENSIONS = [{False, True}, {"ascending", "descending"}, {False, True}, {False, True}]


def test_a_difference_is_found(tmp_path):
    """The comparison itself: a wrong address, a missing event, an early end, and undefined behaviour."""
    real = tmp_path / "real.txt"
    real.write_text("> malloc 1 5 0\nalloc 10 5 0 0.0\n= 10\n> free 1\nfree_requested 10 5 0 0.0\n# 2 events\n")

    def compared(policy, whole=True):
        (tmp_path / "policy.txt").write_text(policy)
        outcome = differential.Outcome(None)
        differential.compare(real, tmp_path / "policy.txt", whole, outcome, "")
        return outcome

    same = compared(real.read_text())
    assert (same.events, same.calls, same.problem, same.undefined) == (2, 2, "", "")
    assert "real:   = 10" in compared(real.read_text().replace("= 10", "= 20")).problem
    assert compared(real.read_text().replace("free_requested 10 5 0 0.0\n", "")).problem
    assert compared("> malloc 1 5 0\nalloc 10 5 0 0.0\n").problem
    assert compared(real.read_text(), whole=False).problem
    undefined = compared("> malloc 1 5 0\nalloc 10 5 0 0.0\n! undefined SplitBlockReleased\n> free 1\n")
    assert (undefined.undefined, undefined.problem, undefined.events) == ("SplitBlockReleased", "", 1)
    # Flagged, but only later than they part.
    assert compared("> malloc 1 5 0\nalloc 20 5 0 0.0\n= 20\n> free 1\n! undefined SplitBlockReleased\n").problem
