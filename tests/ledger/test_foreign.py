# SPDX-License-Identifier: MIT OR Apache-2.0
"""Users of a GPU that a dry run cannot follow: a plain sentence and exit code 2, never a verdict that is silent."""

import os
import shutil
import subprocess
import sys

import pytest
from programs import compiled


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    return compiled("runtime", tmp_path_factory.mktemp("programs"))


def test_a_runtime_that_is_linked_statically_is_named(run, runtime):
    ran = run(runtime, "runtime")
    assert ran.status == 2
    assert ran.verdict["outcome"] == "not_covered"
    assert [(user["name"], user["how"]) for user in ran.verdict["foreign"]] == [("runtime", "runtime")]


def test_the_words_say_what_can_and_what_cannot_be_done(runtime, tmp_path):
    line = [os.environ["TONNAGE"], "run", "--gpu", "rtx3090", "-o", tmp_path / "run.tonnage", "--", runtime, "runtime"]
    said = subprocess.run(line, capture_output=True, text=True, check=False).stdout
    assert said.splitlines()[1] == "no verdict: this program uses CUDA through runtime, and PyTorch did not use a GPU"
    assert "linked statically" in said and "import torch first" in said


def test_a_framework_that_divides_the_device_itself_is_ended_at_once(run, runtime, tmp_path):
    (tmp_path / "tensorflow").mkdir()
    program = shutil.copy(runtime, tmp_path / "tensorflow" / "program")
    ran = run(program)
    assert ran.status == 2
    assert ran.lines == []
    assert ran.verdict["outcome"] == "not_covered"
    assert ran.verdict["foreign"][0]["name"] == "TensorFlow"
    # The same calls of a program of one's own are counted like any others.
    ran = run(runtime)
    assert (ran.status, ran.lines, ran.verdict["foreign"]) == (0, ["goes on 0"], [])
    assert ran.verdict["devices"][0]["at_peak"]["other"] == 20 << 30


def test_jax_without_torch_is_ended_before_it_computes_on_the_cpu(run, tmp_path):
    plugin = tmp_path / "jax_plugins" / "xla_cuda13"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text("print('loaded')")
    job = tmp_path / "job.sh"
    # A shell script finds its Python itself: this one has no torch.
    job.write_text(f"exec {sys.executable} -c 'import jax_plugins.xla_cuda13; print(1)'")
    ran = run("sh", job, environment={"PYTHONPATH": str(tmp_path)})
    assert ran.status == 2
    assert ran.lines == []
    assert [(user["name"], user["how"]) for user in ran.verdict["foreign"]] == [("JAX", "cpu")]
