# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage check` on the repository's own example, as its CI runs it."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import PYTHON, TONNAGE

EXAMPLE = Path(__file__).parents[2] / "examples" / "budget"


@pytest.fixture
def example(tmp_path):
    """A copy of the example, to be changed."""
    folder = tmp_path / "budget"
    shutil.copytree(EXAMPLE, folder)
    return folder


def check(folder, *options):
    environment = dict(os.environ, NO_COLOR="1", TONNAGE_NO_PROGRESS="1")
    environment["PATH"] = f"{Path(PYTHON).parent}:{environment['PATH']}"
    return subprocess.run(
        [TONNAGE, "check", *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def plant(folder, line, instead):
    script = folder / "train.py"
    text = script.read_text()
    assert text.count(line) == 1
    script.write_text(text.replace(line, instead))


def test_the_example_holds_to_the_byte():
    done = check(EXAMPLE, "--json")
    assert done.returncode == 0, done.stderr
    (budget,) = json.loads(done.stdout)["budgets"]
    assert budget["answer"] == "holds"
    assert all(figure["measured"] == figure["accepted"] for figure in budget["figures"])


def test_one_extra_live_activation_is_caught_with_its_line(example):
    plant(example, "hidden = block(hidden)\n", "hidden = block(hidden)\n            self.last = hidden.clone()\n")
    number = (example / "train.py").read_text().splitlines().index("            self.last = hidden.clone()") + 1
    done = check(example)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("grew since it was accepted  train on a100-40gb\n")
    assert f"train.py forward in Model (activations) line {number}" in done.stdout

    # 8 sequences of 256 tokens, 512 float32 numbers each: one activation.
    (budget,) = json.loads(check(example, "--json").stdout)["budgets"]
    (change,) = budget["diff"]["lines"]
    assert change["after"] - change["before"] == 8 * 256 * 512 * 4

    annotation = check(example, "--format", "github").stdout
    assert annotation.startswith(f"::error file=train.py,line={number},title=GPU memory")
    suite = ElementTree.fromstring(check(example, "--format", "junit").stdout)
    assert suite.attrib["failures"] == "1"
    assert "peak allocated" in suite.find("testcase/failure").attrib["message"]
    assert "| ❌ grew |" in check(example, "--format", "markdown").stdout

    assert check(example, "--update").returncode == 0
    assert check(example).returncode == 0


def test_a_limit_is_not_accepted_away(example):
    plant(example, "LENGTH = 8192, 512, 4, 8, 256", "LENGTH = 8192, 512, 4, 8, 512")
    assert check(example, "--update").returncode == 1
    done = check(example)
    assert done.returncode == 1
    assert "over the limit of 600.00 MiB" in done.stdout


def test_a_script_that_fails_is_no_yes(example):
    plant(example, "loss.backward()\n", "raise SystemExit(3)\n")
    done = check(example)
    assert done.returncode == 2
    assert done.stdout.startswith("failed  train on a100-40gb\n")
    assert "  the script ended with exit code 3\n" in done.stdout


def test_a_budget_that_cannot_be_run_leaves_the_others_their_answers(example):
    config = example / "tonnage.toml"
    config.write_text(config.read_text() + '\n[[budget]]\nname = "typo"\nrun = "pyhton train.py"\ngpu = "t4"\n')
    done = check(example, "--json")
    assert done.returncode == 2, done.stderr
    train, typo = json.loads(done.stdout)["budgets"]
    assert (train["answer"], typo["answer"]) == ("holds", "failed")
    assert "cannot find the command pyhton" in typo["trouble"]


def test_growth_of_too_few_steps_is_not_taken_for_none(example):
    config = example / "tonnage.toml"
    text = config.read_text()
    assert "growth" in text
    plant(example, "range(3)", "range(2)")
    done = check(example)
    assert done.returncode == 2, done.stdout
    assert "growth per step has a limit and is not known" in done.stdout
