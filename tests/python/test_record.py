# SPDX-License-Identifier: MIT OR Apache-2.0
"""`record()`, on a GPU that the stand-in plays: what it records is held against torch's own counts."""

import re
import textwrap

import pytest
import tonnage

#: Trains, and reports what torch itself counted.
SCRIPT = textwrap.dedent(
    """
    import sys
    import tonnage
    import torch

    ring, steps, fail = int(sys.argv[1]), int(sys.argv[2]), len(sys.argv) > 3
    with tonnage.record("inner.tonnage", ring=ring) as recorded:
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        kept = []
        for step in range(steps):
            batch = torch.randn(64 + step % 7 * 16, 512, device="cuda")
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                kept.append(batch)
        print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        if fail:
            torch.zeros(1 << 40, device="cuda")
    counts = torch._C._cuda_memoryStats(0)["allocation"]["all"]
    print("counted", counts["allocated"] + counts["freed"])
    print("lost", recorded.lost)
    """
)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*words, isolated):
        # With -I Python does not find our hook, so that nothing but the script touches torch's history.
        python = ["python", "-I"] if isolated else ["python"]
        verdict = tonnage.dry_run(
            [*python, "script.py", *map(str, words)], gpu="rtx4090", capture=True, cwd=tmp_path, progress=False
        )
        return verdict, tonnage.load(tmp_path / "inner.tonnage")

    return run


def figures(output, name):
    return [int(one) for one in re.search(rf"^{name} (.*)$", output, re.MULTILINE)[1].split()]


def handled(recording):
    """Blocks that were handed out or taken back, by the rows of the recording."""
    kinds = recording.to_arrow()["kind"].to_pylist()
    return kinds.count("alloc") + kinds.count("free_completed")


@pytest.mark.parametrize("isolated", [True, False])
def test_all_of_it_is_recorded(run, isolated):
    verdict, recording = run(100_000, 60, isolated=isolated)
    allocated, reserved = figures(verdict.output, "peak")
    assert figures(verdict.output, "lost") == [0]
    timeline = recording.timeline()
    assert (timeline.peak_allocated, timeline.peak_reserved) == (allocated, reserved)
    assert handled(recording) == figures(verdict.output, "counted")[0]
    replay = recording.replay(alloc="recorded", smallest=False)
    assert "reproduced: all" in str(replay)
    # A dry run around a script that records is as exact as without.
    if not isolated:
        assert verdict.to_dict()["devices"][0]["peak_reserved"] == reserved


def test_what_a_ring_lost_is_counted_and_said(run):
    verdict, recording = run(1000, 300, isolated=True)
    (lost,) = figures(verdict.output, "lost")
    assert lost > 1000
    assert handled(recording) + lost == figures(verdict.output, "counted")[0]
    unknown = recording.info().to_dict()["recordings"][0]["unknown"]
    assert any("came round" in sentence for sentence in unknown)


def test_an_out_of_memory_is_explained_and_goes_on(run):
    verdict, recording = run(100_000, 5, "fail", isolated=False)
    assert verdict.outcome == "does_not_fit"
    assert "inner.tonnage has the recording" in verdict.output
    assert "out of memory: " in verdict.output
    assert "more than the GPU has" in verdict.output
    assert "torch.OutOfMemoryError" in verdict.output
    assert recording.explain().outcome == "out_of_memory"


def test_without_a_gpu_it_says_what_to_do():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(tonnage.Error, match="sees no GPU") as caught, tonnage.record():
        pass
    assert "dry_run" in caught.value.hint
