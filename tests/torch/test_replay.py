# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage replay` and `tune` on recordings of the real torch: every event comes out of the replay."""

import json
import re
import subprocess

import pytest
from conftest import TONNAGE, environment

MIB = 1 << 20


def printed(text, name):
    """The number a script printed behind `name`."""
    return int(re.search(rf"^{name} (\d+)$", text, re.M)[1])


def answer(command, recording, *options, code=0):
    line = [TONNAGE, command, str(recording), "--json", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def reproduced(run):
    """Replays the recorded setting and checks that it is the recording."""
    track = answer("replay", run.recording, "--alloc", "recorded", "--no-smallest")["tracks"][0]
    result = track["allocators"][0]
    comparison = result["comparison"]
    assert comparison["difference"] is None and comparison["incomparable_from"] is None, comparison
    assert comparison["equal"] == comparison["events"] == track["events"]
    assert result["fidelity"] == "exact" and result["undefined"] == []
    assert result["peak_reserved"] == track["recorded_peak_reserved"] == printed(run.err, "peak reserved")
    assert result["peak_allocated"] == printed(run.err, "peak allocated")
    return track, result, comparison


@pytest.mark.parametrize(
    "settings", ["", "expandable_segments:True", "max_split_size_mb:64,roundup_power2_divisions:4"]
)
def test_training_with_sequences_that_grow(tonnage, settings):
    run = tonnage("transformer.py", PYTORCH_CUDA_ALLOC_CONF=settings)
    assert run.code == 0, run.err
    _, _, comparison = reproduced(run)
    assert comparison["events"] > 10_000


def test_inference_with_a_cache_and_empty_cache(tonnage):
    run = tonnage("kv_cache.py")
    assert run.code == 0, run.err
    _, _, comparison = reproduced(run)
    assert comparison["empty_caches"] == 4


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_several_streams_and_a_pool(tonnage, settings):
    run = tonnage("streams.py", PYTORCH_CUDA_ALLOC_CONF=settings)
    assert run.code == 0, run.err
    kinds = run.table().column("kind").to_pylist()
    assert kinds.count("free_completed") > 1000
    reproduced(run)


def test_near_the_limit_with_retries(tonnage):
    roomy = tonnage("transformer.py")
    track = answer("replay", roomy.recording, "--alloc", "recorded")["tracks"][0]
    smallest = track["allocators"][0]["smallest"]["bytes"]
    # The real torch agrees on the smallest device, and on every retry there.
    tight = tonnage("transformer.py", options=["--capacity", str(smallest)])
    assert tight.code == 0, tight.err
    _, result, comparison = reproduced(tight)
    assert result["retries"] > 0 and comparison["retries"] > 0
    over = tonnage("transformer.py", options=["--capacity", str(smallest - 2 * MIB)])
    assert over.code == 1, over.err
    failure = [row for row in over.table().select(["kind", "size", "free"]).to_pylist() if row["kind"] == "oom"][0]
    told = answer("replay", roomy.recording, "--alloc", "recorded", "--capacity", str(smallest - 2 * MIB), code=1)
    outcome = told["tracks"][0]["allocators"][0]["outcome"]
    assert outcome["kind"] == "out_of_memory"
    assert -(-outcome["requested"] // 512) * 512 == failure["size"]
    assert outcome["free"] == failure["free"]


def test_the_advice_of_tune_holds_in_the_real_torch(tonnage):
    run = tonnage("transformer.py")
    told = answer("tune", run.recording)
    assert told["tried"] >= 200
    assert told["advice"] == "saves"
    best = told["best"]
    assert best["smallest"] < told["baseline"]["smallest"]
    tight = tonnage(
        "transformer.py", options=["--capacity", str(best["smallest"])], PYTORCH_CUDA_ALLOC_CONF=best["conf"]
    )
    assert tight.code == 0, tight.err
    short = answer("tune", run.recording, "--capacity", "4GiB", code=1)
    assert short["advice"] == "memory_is_short"
    words(run)


def words(run):
    line = [TONNAGE, "replay", str(run.recording)]
    out = subprocess.run(line, capture_output=True, text=True, env=environment()).stdout
    assert re.search(r"^torch .* exact, recorded$", out, re.M)
    assert len(re.findall(r" approximation$", out, re.M)) == 2
    assert "reproduced: all" in out
    line = [TONNAGE, "tune", str(run.recording)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment())
    assert re.search(r"^  export PYTORCH_CUDA_ALLOC_CONF=\S+$", done.stdout, re.M)
    assert done.stderr == ""
