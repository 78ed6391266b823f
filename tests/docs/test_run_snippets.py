# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runner of snippets must fail when a page is wrong. Needs neither torch nor the wheel."""

import sys
from pathlib import Path

import pytest
from run_snippets import blocks_of, commands_of, matches, run_page, updated


def page(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(text)
    return run_page(path, Path(sys.executable))


def test_a_right_page_passes(tmp_path):
    result = page(
        tmp_path,
        """
```toml
# limits.toml
peak = 3
```

```console
$ grep -c peak limits.toml
1
$ export WORD=kept; mkdir sub; cd sub
$ echo $WORD; pwd; false   # exit 1
kept
/job/sub
$ cat <<END
one
END
one
```

```python
value = 1
```

```python
print(value + 1)
```

```text
2
```

<!-- not run: needs a real GPU -->
```console
$ nvidia-smi
```
""",
    )
    assert result.failures == []
    assert result.ran == 6
    assert len(result.left_out) == 1 and "needs a real GPU" in result.left_out[0]


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ echo 2\n3\n```",
        "```console\n$ echo 2\n```",
        "```console\n$ true\nmore\n```",
        "```console\n$ false\n```",
        "```console\n$ true   # exit 1\n```",
        "```console\necho 2\n```",
        "```python\nprint(2)\n```\n\n```text\n3\n```",
        "```python\nprint(2)\n```",
        "```python\nprint(2)\n```\n\nWords.\n\n```text\n2\n```",
        "```python\n1 / 0\n```",
        "```sh\nmake\n```",
        "<!-- run: false -->",
        "<!-- not run: a reason -->\n\nwords between\n\n```sh\nmake\n```",
    ],
)
def test_a_wrong_page_fails(tmp_path, text):
    assert len(page(tmp_path, text).failures) == 1


def test_three_dots():
    assert matches(["a … c"], ["a b c"])
    assert not matches(["a … c"], ["a b d"])
    assert matches(["a", "…", "z"], ["a", "b", "c", "z"])
    assert matches(["a", "…", "z"], ["a", "z"])
    assert not matches(["a", "…", "z"], ["a", "b"])
    assert not matches(["1.00 GiB"], ["1x00 GiB"])


def test_update_keeps_what_is_loose():
    assert updated(["2.79 s …", "3"], ["2.79 s x", "4"]) == ["2.79 s …", "4"]
    assert updated(["…", "3"], ["4"]) is None


def test_a_command_may_be_long():
    blocks, _ = blocks_of("```console\n$ echo a \\\n    b\na b\n```")
    (command,) = commands_of(blocks[0])
    assert command.text == "echo a \\\n    b"
    assert command.expected == ["a b"]
