# SPDX-License-Identifier: MIT OR Apache-2.0
"""action.yml and .pre-commit-hooks.yaml: what they run, with a `tonnage` that only reports how it was called."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
GUIDE = (ROOT / "docs/guides/github-and-pre-commit.md").read_text()


def run(step, folder, code=0, **inputs):
    """Runs a step of the action as GitHub does: inputs by expressions, in `bash -e`."""
    values = {name: given["default"] for name, given in ACTION["inputs"].items()} | inputs
    for name in ("tonnage", "python"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nprintf "[%s]" {name} "$@"\nexit {code}\n')
        program.chmod(0o755)

    def filled(text):
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)

    environment = {name: filled(value) for name, value in step["env"].items()}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", filled(step["run"])],
        env=os.environ
        | {"PATH": f"{folder}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(folder / "summary")}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_inputs_are_declared_and_used():
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    # No input is pasted into a script, where it could be read as a command.
    assert all("${{" not in step["run"] for step in ACTION["runs"]["steps"])
    assert all(f"| `{name}` |" in GUIDE for name in ACTION["inputs"])


@pytest.mark.parametrize(
    ("inputs", "called"),
    [
        ({}, "[tonnage][check][--format][github]"),
        ({"budgets": "train serve"}, "[tonnage][check][--format][github][train][serve]"),
        ({"config": "my budgets.toml"}, "[tonnage][check][--format][github][--config][my budgets.toml]"),
        ({"budgets": "$(touch here); *"}, "[tonnage][check][--format][github][$(touch][here);][*]"),
    ],
)
def test_the_check(tmp_path, inputs, called):
    assert run(ACTION["runs"]["steps"][1], tmp_path, **inputs).stdout == called


@pytest.mark.parametrize("form", ["github", "markdown", "text"])
@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_that_of_the_check(tmp_path, form, code):
    done = run(ACTION["runs"]["steps"][1], tmp_path, code, format=form)
    assert done.returncode == code
    summary = tmp_path / "summary"
    assert summary.exists() == (form == "markdown")
    assert not summary.exists() or summary.read_text() == done.stdout


@pytest.mark.parametrize(("version", "wanted"), [("", "tonnage"), ("0.1.0", "tonnage==0.1.0")])
def test_the_version(tmp_path, version, wanted):
    done = run(ACTION["runs"]["steps"][0], tmp_path, version=version)
    assert done.stdout == f"[python][-m][pip][install][--quiet][{wanted}]"


def test_the_hook():
    assert HOOK["entry"] == "tonnage check" and HOOK["pass_filenames"] is False
    hit = ["train.py", "src/model.py", "tonnage.toml", "jobs/tonnage.lock", "pyproject.toml"]
    miss = ["README.md", "my-tonnage.toml", "train.pyc"]
    assert [name for name in hit + miss if re.search(HOOK["files"], name)] == hit


def test_the_guide_shows_these_files():
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)]
    workflow, shared, local = blocks
    used = workflow["jobs"]["memory"]["steps"][-1]
    assert set(used["with"]) <= set(ACTION["inputs"])
    assert shared["repos"][0]["hooks"][0]["id"] == HOOK["id"]
    copied = local["repos"][0]["hooks"][0]
    assert copied == {name: HOOK[name] for name in copied}
