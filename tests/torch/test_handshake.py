# SPDX-License-Identifier: MIT OR Apache-2.0
"""A torch that tonnage does not work with is noticed after the first allocation, and nothing else is changed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON, TONNAGE, environment, read_table

SCRIPT = """
import torch

model = torch.nn.Linear(8, 8, device="cuda")
for _ in range(2):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
print("the script goes on")
"""
# The last check fails if nothing in the memory of the device is ever known.
UNKNOWN = """
import sys
import torch

sys.modules["tonnage_hook.process"]._recorder.values.mark_range = lambda *_: None
"""
BLOCKS = b"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
DISPATCH = b"_ZN3c104impl21dispatch_mode_enabledEv"
LIBRARY = "libtonnage_standin.so"


@pytest.fixture
def run(tmp_path):
    """Runs a script with a stand-in that does not have a symbol, as if torch called a function by another name."""

    def run(script, renamed=None, text=False):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "tonnage"
        if not program.exists():
            os.link(TONNAGE, program) if os.stat(TONNAGE).st_dev == os.stat(folder).st_dev else shutil.copy(
                TONNAGE, program
            )
        library = (Path(TONNAGE).parent / LIBRARY).read_bytes()
        if renamed is not None:
            assert renamed in library
            library = library.replace(renamed, b"_" + b"x" * (len(renamed) - 1))
        (folder / LIBRARY).write_bytes(library)
        (tmp_path / "script.py").write_text(script)
        recording = tmp_path / f"{len(list(tmp_path.glob('*.tonnage')))}.tonnage"
        line = [str(program), "run", *([] if text else ["--json"]), "-o", str(recording), "--", PYTHON, "script.py"]
        variables = {key: value for key, value in environment().items() if key != "TONNAGE_STANDIN"}
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=variables, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return (done.stdout if text else json.loads(done.stdout)), recording

    return run


def test_a_handshake_that_succeeds_is_silent_and_leaves_no_trace(run):
    verdict, recording = run(SCRIPT)
    assert verdict["limitations"] == []
    rows = read_table(recording).to_pylist()
    # Weights, bias and results, and the workspaces of cuBLAS and cuBLASLt: the handshake allocates nothing.
    assert {row["size"] for row in rows if row["kind"] == "alloc"} == {512, 1 << 20, 32 << 20}
    assert verdict["costs"]["total"]["launches"] == run(SCRIPT)[0]["costs"]["total"]["launches"]


@pytest.mark.parametrize(
    ("code", "renamed", "before"), [("TN301", BLOCKS, ""), ("TN302", DISPATCH, ""), ("TN303", None, UNKNOWN)]
)
def test_a_failed_check_is_a_limitation_and_the_result_is_not_exact(run, code, renamed, before):
    verdict, _ = run(before + SCRIPT, renamed)
    assert [one["code"] for one in verdict["limitations"]] == [code]
    assert verdict["limitations"][0]["affects_figures"]
    text, _ = run(before + SCRIPT, renamed, text=True)
    assert f"({code})" in text
    assert not any(line.endswith("exact") or " exact " in line for line in text.splitlines() if "allocated" in line)
    assert "assumed" in text
