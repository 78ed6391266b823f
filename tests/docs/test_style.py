# SPDX-License-Identifier: MIT OR Apache-2.0
"""The counts of .ci/style.py: what is counted where, and that a count may only fall."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".ci"))

import style


def count(name, text, area, pattern):
    return style.counts([(name, text)])[area][pattern]


@pytest.mark.parametrize(
    ("name", "text", "area", "pattern", "expected"),
    [
        ("src/a.rs", "// What is freed is gone. Those that\n// nobody holds, too.", "comments", "headless", 2),
        ("src/a.rs", "/// It frees\n/// What is meant by `x`?", "comments", "headless", 0),
        ("src/a.rs", "// It frees.\n\n// Of all, one.", "comments", "headless", 1),
        ("src/a.rs", "// Python is asked; it tells.", "comments", "speech", 2),
        ("src/a.rs", 'let url = "http://nobody"; // fine', "comments", "nobody", 0),
        ("crates/a/src/a.rs", 'print("nobody is told"); // nobody', "output", "nobody", 1),
        ("crates/a/src/a.rs", '#[cfg(test)]\nmod tests { f("nobody") }', "output", "nobody", 0),
        ("crates/a/tests/a.rs", 'f("nobody")', "output", "nobody", 0),
        ("src/a.rs", "let quote = '\"'; // it is no file", "comments", "is_no", 1),
        ("src/a.rs", "fn told(x: u8) {}\nfn told_apart() {}\nfn of<T>() {}", "names", "bare", 2),
        ("a.py", 'def f():\n    """Who calls."""\n    x = """Who"""', "comments", "headless", 1),
        ("python/a.py", 'print("it says")  # it says', "output", "speech", 1),
        ("README.md", "It waits for ever.\n\n```text\nfor ever\n```\n\n`for ever`", "docs", "words", 1),
        ("README.md", "# What is it?\n\n- What is freed\n  tells.\n", "docs", "headless", 1),
        ("docs/reference/cli.md", "What nobody says.", "docs", "nobody", 0),
    ],
)
def test_what_is_counted(name, text, area, pattern, expected):
    assert count(name, text, area, pattern) == expected


def test_a_count_only_falls(tmp_path, capsys):
    (tmp_path / ".ci").mkdir()
    path, good, bad = tmp_path / ".ci/style.toml", ("a.md", "It records."), ("a.md", "It says.")
    path.write_text(style.render("# Why\n[", style.counts([bad])))
    assert style.problems(tmp_path, [bad]) == []
    assert style.problems(tmp_path, [good]) == [] and "docs.speech 1 → 0" in capsys.readouterr().out
    (problem,) = style.problems(tmp_path, [bad, bad], update=True)
    assert "docs.speech is 2, at most 1 are accepted" in problem
    assert style.problems(tmp_path, [good], update=True) == []
    assert path.read_text().startswith("# Why\n[comments]\n") and len(style.problems(tmp_path, [bad])) == 1
