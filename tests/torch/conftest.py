# SPDX-License-Identifier: MIT OR Apache-2.0
"""How the tests run `tonnage` with a real torch.

`TONNAGE` names the binary, `TORCH_PYTHON` a Python with torch. Recordings are
read with pyarrow, which shares no code with what wrote them.

CI runs a slice: what is named in `WHOLE` is left out unless `TORCH_TESTS=all`.
"""

import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.ipc
import pytest

SCRIPTS = Path(__file__).parent / "scripts"
TONNAGE = os.environ.get("TONNAGE", str(Path(__file__).parents[2] / "target" / "debug" / "tonnage"))
PYTHON = os.environ.get("TORCH_PYTHON", "python")
#: The GPU of tests that do not name one.
os.environ.setdefault("TONNAGE_GPU", "h100-80gb")

# Tests read what their jobs write; test_harmless.py takes this out again.
os.environ["TONNAGE_PASS_THROUGH"] = tempfile.gettempdir()

#: Tests that take long and have a shorter one beside them: parts of their names.
WHOLE = (
    "test_changes.py::test_a_change_gives_what_the_printed_lines_give[",
    "test_fit.py::test_a_constant_of_the_script_has_another_value",
    "test_harmless.py::test_files_are_as_before_and_the_job_sees_its_writes[fabric.py-preload]",
    "test_harmless.py::test_files_are_as_before_and_the_job_sees_its_writes[trainer.py-preload]",
    "test_harmless.py::test_fit_leaves_the_files_that_an_import_writes[overlay]",
    "test_harmless.py::test_fit_leaves_the_directory_of_a_script_that_rotates_checkpoints[overlay]",
    "test_host.py::test_a_model_built_on_the_host_costs_no_memory_there[True-False]",
    "test_plugged.py::test_less_is_reserved[script1]",
    "test_ranks.py::test_every_collective_operator_and_type[8]",
    "test_ranks.py::test_the_buffers_of_nccl_grow_with_its_communicators[None]",
    "test_record.py::test_verify_names_another_setting_and_another_gpu",
    "test_record.py::test_verify_names_a_value_that_the_script_decides_by",
    "test_replay.py::test_several_streams_and_a_pool[expandable_segments:True]",
    "test_replay.py::test_the_advice_of_tune_holds_in_the_real_torch",
    "test_replay.py::test_training_with_sequences_that_grow[expandable_segments:True]",
    "test_run.py::test_an_8b_model_does_not_fit_on_40_gib",
    "test_run.py::test_two_runs_give_the_same_recording[expandable_segments:True]",
    "test_shard.py::test_rank_0_is_as_on_live_ranks[changed_gpt.py-fully-shard-4]",
    "test_values.py::test_values_leave_every_event_and_stack_as_it_was[transformer]",
    "test_world.py::test_one_rank_of_64[ddp-]",
)
#: Of those, what CI runs all the same: a change of each script.
OF_THEM = ("[gradients-to-none]", "[optimizer-8bit]", "[checkpoint-blocks]", "[lora]")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("TORCH_TESTS") == "all":
        return
    left_out = [item for item in items if is_left_out(item.nodeid)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def is_left_out(name):
    return any(part in name for part in WHOLE) and not name.endswith(OF_THEM)


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float
    recording: Path

    @property
    def verdict(self):
        return json.loads(self.out)

    def table(self):
        return read_table(self.recording)


def read_table(path):
    with open(path, "rb") as file:
        return pyarrow.ipc.open_stream(file).read_all()


def environment(**more):
    """The environment of a run, without what would change its result."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}
    return {**kept, **more}


@pytest.fixture
def tonnage(tmp_path):
    """Runs `tonnage run` with a script of this folder; `--json` unless told otherwise."""

    def run(script, *arguments, options=(), command=None, json=True, timeout=300, hook_may_fail=False, **variables):
        recording = tmp_path / f"{len(list(tmp_path.glob('*.tonnage')))}.tonnage"
        command = command or [PYTHON, str(SCRIPTS / script), *arguments]
        # A test that sets the capacity is about the last byte, and not about the margin.
        exact = ["--margin", "0"] if "--capacity" in options and "--margin" not in options else []
        line = [TONNAGE, "run", *(["--json"] if json else []), "-o", str(recording), *options, *exact]
        line += ["--", *command]
        started = time.monotonic()
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=timeout, env=environment(**variables), cwd=tmp_path
        )
        result = Result(done.returncode, done.stdout, done.stderr, time.monotonic() - started, recording)
        if json and done.stdout and not hook_may_fail:
            assert not result.verdict.get("hook_failures"), result.verdict["hook_failures"]
        return result

    return run
