# SPDX-License-Identifier: MIT OR Apache-2.0
"""The age of results, in git repositories that are made for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stored

RUNS = [Path(__file__).parents[1] / folder / "run.py" for folder in ("compat", "fidelity")]


def git(folder, *words):
    variables = {name: "test" for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME")}
    variables |= {name: "test@example.org" for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL")}
    variables |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(folder), *words], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder, name, text):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", f"{name} {text}")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def test_a_result_ages_with_commits_to_the_code_alone(tree):
    first = commit(tree, "crates/tonnage-run/src/hook/values.py", "1")
    history = stored.History(tree)
    assert history.age(first) == 0
    commit(tree, "docs/page.md", "1")
    assert stored.History(tree).age(first) == 0
    commit(tree, "crates/tonnage-cli/src/main.rs", "1")
    assert stored.History(tree).age(first) == 0
    second = commit(tree, "crates/tonnage-standin/src/lib.rs", "1")
    commit(tree, "crates/tonnage-alloc/src/lib.rs", "1")
    history = stored.History(tree)
    assert (history.age(first), history.age(second), history.age(first, second)) == (2, 1, 1)
    results = [{"commit": first}, {"commit": second}, {"commit": history.code_commit()}]
    text = "2 of 3 results are stale. Commits to the code since: current: 1, 1 to 50: 2."
    assert history.summary(results) == text
    # A page stays as it was written.
    assert history.summary(results[:2], second).startswith("1 of 2 results are stale.")


def test_the_stamp_is_the_last_commit_to_the_code(tree):
    code = commit(tree, "crates/tonnage-capture/src/lib.rs", "1")
    commit(tree, "README.md", "1")
    history = stored.History(tree)
    assert history.stamp() == {"commit": code}
    (tree / "README.md").write_text("2")
    assert history.stamp() == {"commit": code}
    (tree / "crates/tonnage-capture/src/lib.rs").write_text("2")
    assert history.stamp() == {"commit": code, "modified": True}
    assert stored.cell({"commit": code, "modified": True}, history, "HEAD") == f"`{code[:9]}`+, 0"


def test_results_above_the_limit_are_named(tree, monkeypatch, capsys):
    monkeypatch.setattr(stored, "MAX_AGE", 2)
    old = commit(tree, "crates/tonnage-run/a", "0")
    new = commit(tree, "crates/tonnage-run/a", "1")
    commit(tree, "crates/tonnage-run/a", "2")
    rows = [("old", {"commit": old}), ("new", {"commit": new})]
    assert stored.check(stored.History(tree), rows) == []
    commit(tree, "crates/tonnage-run/a", "3")
    assert stored.check(stored.History(tree), rows) == ["old"]
    assert "2 of 2 results are stale" in capsys.readouterr().out


def test_a_history_that_is_missing_is_an_error_with_a_hint(tree, tmp_path):
    first = commit(tree, "crates/tonnage-run/a", "0")
    commit(tree, "crates/tonnage-run/a", "1")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tree}", "shallow")
    shallow = stored.History(tmp_path / "shallow")
    for call in (shallow.stamp, shallow.check_whole, lambda: shallow.age(first)):
        with pytest.raises(stored.HistoryError, match=r"hint: .*unshallow"):
            call()
    (tmp_path / "plain").mkdir()
    with pytest.raises(stored.HistoryError, match="hint: "):
        stored.History(tmp_path / "plain", ["a"]).code_commit()
    with pytest.raises(stored.HistoryError, match="result of gpt does not name its commit"):
        stored.History(tree).summary([{"name": "gpt"}])
    with pytest.raises(stored.HistoryError, match="is not in the history"):
        stored.History(tree).age("0" * 40)


def test_an_old_binary_is_refused(tree):
    binary = tree / "tonnage"
    binary.write_text("")
    commit(tree, "crates/tonnage-run/src/lib.rs", "0")
    history = stored.History(tree)
    os.utime(tree / "crates/tonnage-run/src/lib.rs", (1, 1))
    history.check_binary(binary)
    os.utime(binary, (0, 0))
    with pytest.raises(stored.HistoryError, match="hint: build"):
        history.check_binary(binary)


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.parent.name)
def test_the_check_fails_on_a_row_without_a_result(run, tmp_path):
    """In a copy of the results without any of their last row."""
    code = (
        "import json, sys, pathlib, run\n"
        "results = pathlib.Path(sys.argv.pop(1))\n"
        "lines = run.RESULTS.read_text().splitlines(keepends=True)\n"
        "name = lambda line: [json.loads(line).get(key) for key in ('name', 'job')]\n"
        "results.write_text(''.join(line for line in lines if name(line) != name(lines[-1])))\n"
        "run.RESULTS = results\n"
        "sys.argv[1:] = ['--check']\n"
        "sys.exit(run.main())\n"
    )
    copy = tmp_path / "results.jsonl"
    done = subprocess.run([sys.executable, "-c", code, str(copy)], cwd=run.parent, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "without a result" in done.stdout


def test_not_run_names_the_jobs_without_a_result_and_no_others():
    code = (
        "import run\n"
        "known, reasons = run.current(run.results()), run.not_run()\n"
        "assert run.without_result(known, reasons) == []\n"
        "name = next(iter(reasons))\n"
        "fewer = {job: reason for job, reason in reasons.items() if job != name}\n"
        "missing = f'without a result, and without a reason in not_run.toml: {name}'\n"
        "assert run.without_result(known, fewer) == [missing]\n"
        "job, result = known[0]\n"
        "more = {**reasons, job.name: 'slow', 'gone': 'slow'}\n"
        "expected = [f'in not_run.toml, but with a result: {job.name}', 'in not_run.toml, but not a job: gone']\n"
        "assert run.without_result(known, more) == expected\n"
        "assert all(reasons.values())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=RUNS[1].parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
