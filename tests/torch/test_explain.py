# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage explain` with the real torch: its totals. Causes and proposals are judged in test_answers.py."""

import json
import subprocess

import pytest
from conftest import TONNAGE, environment
from test_run import printed


def explain(recording, *options):
    """What `tonnage explain` says of a recording, with its exit code."""
    line = [TONNAGE, "explain", str(recording), *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(NO_COLOR="1"))
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "script, arguments, options",
    [
        # Short, so that the peak lies in the step, where all three are alive.
        ("transformer.py", ["16", "16", "16"], []),
        ("llama_8b.py", [], ["--gpu", "h100-80gb"]),
    ],
)
def test_totals_are_those_of_the_shapes_to_the_byte(tonnage, script, arguments, options):
    run = tonnage(script, *arguments, options=options)
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    assert told["moment"]["phase"] == "step"
    totals = {part["category"]: part for part in told["categories"]}
    for category in ("weights", "gradients", "optimizer_state"):
        computed = printed(run.err, category.replace("_", " "))
        assert totals[category]["bytes"] == computed, category
        # By torch's own word, all of it.
        assert totals[category]["exact_bytes"] == computed, category
    # And all categories together are what torch's counter says.
    parts = sum(part["block_bytes"] for part in told["categories"])
    assert parts == told["on_device"]["allocated"] == printed(run.err, "peak allocated")
