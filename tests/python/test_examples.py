# SPDX-License-Identifier: MIT OR Apache-2.0
"""The examples of each integration, on a GPU that the stand-in plays."""

from pathlib import Path

import pytest
import tonnage

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"


@pytest.mark.parametrize(
    ("name", "needs"),
    [("plain", "torch"), ("transformers_trainer", "accelerate"), ("lightning_trainer", "lightning")],
)
def test_an_example_records_and_explains(tmp_path, name, needs):
    pytest.importorskip(needs)
    verdict = tonnage.dry_run([EXAMPLES / f"{name}.py"], gpu="a100-40gb", capture=True, cwd=tmp_path, progress=False)
    assert verdict.outcome == "fits", verdict.output
    assert "on device" in verdict.output
    recordings = list(tmp_path.glob("*.tonnage"))
    assert len(recordings) == 1
    inner, outer = tonnage.load(recordings[0]), verdict.recording
    # The callback saw the steps with the peak: the first optimizer step is in all of them.
    assert inner.timeline().peak_allocated == outer.timeline().peak_allocated
    assert inner.explain().findings
