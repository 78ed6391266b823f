# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage explain` with the real torch: its totals. Causes and proposals are judged in test_answers.py."""

import json
import subprocess

import pytest
from conftest import PYTHON, TONNAGE, environment
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


CACHES = """
import torch


class Server(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"), requires_grad=False)
        self.kv_cache = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
        # Tables that are kept for reuse are no keys and values.
        self.register_buffer("cos_sin_cache", torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"))
        self.register_buffer("freqs_cache", torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"))

    def forward(self, x):
        return x * self.weight


with torch.inference_mode():
    Server()(torch.ones(1 << 20, device="cuda"))
"""


def test_a_cache_of_keys_and_values_is_not_any_cache(tonnage, tmp_path):
    path = tmp_path / "caches.py"
    path.write_text(CACHES)
    run = tonnage(None, command=[PYTHON, str(path)])
    assert run.code == 0, run.err
    told = json.loads(explain(run.recording, "--json")[1])
    totals = {part["category"]: part["exact_bytes"] for part in told["categories"]}
    assert totals["kv_cache"] == 8 << 20
    assert totals["buffers"] == 2 << 20
    assert totals["weights"] == 4 << 20
