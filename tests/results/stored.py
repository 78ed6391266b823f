# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stored results of tests/compat and tests/fidelity: the commit that produced each, and how old that is.

A result is stale when the code that makes recordings and verdicts changed since its commit. Its age is the number of
commits since then that touch this code. The commit of results from before it was stored is the state of the code in the
commit that added them.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The code that decides a result: stand-in, run with its hook, analysis, capture and allocator.
CODE = [f"crates/tonnage-{name}" for name in ("standin", "run", "analysis", "capture", "alloc")]
#: The oldest age that CI accepts. A rerun of all rows takes days, so most of them are stale at any time; the oldest was
#: 150 commits old when this limit was set. It may be lowered, and never raised: run the oldest rows again instead.
MAX_AGE = 250
#: How the ages of results are grouped in a summary.
STEPS = (0, 50, 100, 150, MAX_AGE)


class HistoryError(Exception):
    """The git history does not give the age of a result."""


class History:
    """The git history of a working tree, as far as it concerns results."""

    def __init__(self, root=ROOT, code=CODE):
        self.root, self.code, self.ages = root, code, {}

    def git(self, *words):
        try:
            done = subprocess.run(["git", "-C", str(self.root), *words], capture_output=True, text=True)
        except OSError as error:
            raise HistoryError(f"cannot run git: {error}\nhint: install git") from error
        if done.returncode:
            raise HistoryError(
                f"git {words[0]} failed: {done.stderr.strip()}\n"
                "hint: results need the whole git history; clone the repository, or run `git fetch --unshallow`"
            )
        return done.stdout.strip()

    def code_commit(self):
        """The last commit that touched the code. A rebase of other commits does not change it."""
        self.check_whole()
        commit = self.git("log", "-1", "--format=%H", "HEAD", "--", *self.code)
        if not commit:
            raise HistoryError("no commit touches the code\nhint: run this in a clone of the repository")
        return commit

    def check_whole(self):
        if self.git("rev-parse", "--is-shallow-repository") == "true":
            raise HistoryError("the clone is shallow, so ages are not known\nhint: run `git fetch --unshallow`")

    def is_modified(self):
        return bool(self.git("status", "--porcelain", "--", *self.code))

    def age(self, commit, at="HEAD"):
        """Commits that touch the code, after `commit` and up to `at`."""
        if (commit, at) not in self.ages:
            try:
                self.git("merge-base", "--is-ancestor", commit, at)
            except HistoryError as error:
                raise HistoryError(f"commit {commit} of a result is not in the history of {at}: {error}") from error
            self.ages[commit, at] = int(self.git("rev-list", "--count", f"{commit}..{at}", "--", *self.code))
        return self.ages[commit, at]

    def stamp(self):
        """The fields of a result that name the code it was made with."""
        return {"commit": self.code_commit(), **({"modified": True} if self.is_modified() else {})}

    def check_binary(self, binary):
        """Refuses a binary that is older than the code, whose commit would be stored as that of the result."""
        built = Path(binary).stat().st_mtime
        for folder in self.code:
            for file in (self.root / folder).rglob("*"):
                if file.suffix in (".rs", ".py", ".api", ".toml") and file.stat().st_mtime > built:
                    raise HistoryError(f"{binary} is older than {file}\nhint: build it again")

    def summary(self, results, at="HEAD"):
        """How many results are stale, and by how much, in one sentence each."""
        ages = [self.age(commit_of(result), at) for result in results]
        groups = Counter(next((step for step in STEPS if age <= step), None) for age in ages)
        names = {0: "current", **{high: f"{low + 1} to {high}" for low, high in pairwise(STEPS)}}
        names[None] = f"more than {MAX_AGE}"
        parts = [f"{names[step]}: {groups[step]}" for step in (*STEPS, None) if groups[step]]
        stale = sum(1 for age in ages if age)
        return f"{stale} of {len(ages)} results are stale. Commits to the code since: {', '.join(parts)}."

    def too_old(self, names_and_results, at="HEAD"):
        return [name for name, result in names_and_results if self.age(commit_of(result), at) > MAX_AGE]


def commit_of(result):
    if "commit" not in result:
        name = result.get("name", result.get("job"))
        raise HistoryError(f"the result of {name} does not name its commit\nhint: run it again")
    return result["commit"]


def read_results(path, key):
    """The last result of every row, by its name."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {result[key]: result for result in map(json.loads, lines)}


def append_result(path, result):
    with open(path, "a") as file:
        file.write(json.dumps(result) + "\n")


#: A page names the commit that its ages count up to, so that it changes only when it is written again.
MARK = re.compile(r"<!-- ages: up to ([0-9a-f]{40}) -->")


def mark(commit):
    return f"<!-- ages: up to {commit} -->"


def marked_commit(page):
    """The commit that the ages of a page count up to."""
    found = MARK.search(page)
    if not found:
        raise HistoryError("the page does not name the commit of its ages\nhint: write it again with --page")
    return found[1]


def cell(result, history, at):
    """The commit and the age of a result, for a table."""
    plus = "+" if result.get("modified") else ""
    commit = commit_of(result)
    return f"`{commit[:9]}`{plus}, {history.age(commit, at)}"


def sentence(history, results, at):
    """The paragraph of a page about commits and ages."""
    date = history.git("show", "-s", "--format=%cs", at)
    return (
        "*Commit* is the code that produced a row, with the number of later commits to this code. The code is the\n"
        "stand-in, the run, the hook, the analysis, the capture, and the allocator. Commits are counted up to\n"
        f"`{at[:9]}` of {date}. A `+` marks changes that were not committed.\n"
        f"{history.summary(results, at)}\n{mark(at)}"
    )


def check(history, names_and_results):
    """Prints the summary; the names of the results that are older than CI accepts."""
    history.check_whole()
    print(history.summary([result for _, result in names_and_results]))
    old = history.too_old(names_and_results)
    if old:
        print(f"more than {MAX_AGE} commits to the code since they were run: {', '.join(old)}")
        print("hint: run them again with --only NAME --again; see MAX_AGE in tests/results/stored.py")
    return old


def end_with(main):
    """The exit code of a program; a history that does not give an answer is a failure with its hint."""
    try:
        return main()
    except HistoryError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
