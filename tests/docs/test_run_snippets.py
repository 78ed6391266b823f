# SPDX-License-Identifier: MIT OR Apache-2.0
"""The runner of snippets must fail when a page is wrong. Needs neither torch nor the wheel."""

import sys
from pathlib import Path

import pytest
from run_snippets import Marks, blocks_of, commands_of, matches, run_page, updated


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

```sh
grep -c peak limits.toml
```

```text
1
```

```sh
export WORD=kept; mkdir sub; cd sub
```

<!-- exit: 1 -->
```sh
echo $WORD
pwd; false
```

```text
kept
/job/sub
```

```sh
cat <<END
one

two
END
```

<!-- output: excerpt -->
```text
two
```

<!-- output: not shown -->
```sh
date
```

```sh
echo it took 2.75 s, made 1,234.5 KiB
```

<!-- varies: 9.1 s | 1 KiB -->
```text
it took 9.1 s, made 1 KiB
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
```sh
nvidia-smi
```
""",
    )
    assert result.failures == []
    assert result.ran == 9
    assert len(result.left_out) == 1 and "needs a real GPU" in result.left_out[0]


@pytest.mark.parametrize(
    "text",
    [
        "```sh\necho 2\n```\n\n```text\n3\n```",
        "```sh\necho 2\n```",
        "```sh\ntrue\n```\n\n```text\nmore\n```",
        "```sh\nfalse\n```",
        "```sh\nfalse\ntrue\n```",
        "<!-- exit: 1 -->\n```sh\ntrue\n```",
        "<!-- exit: 1 -->\n```sh\nfalse\nfalse\n```",
        "```console\ntrue\n```",
        "```sh\necho 2\n```\n\nWords.\n\n```text\n2\n```",
        "```sh\necho 1; echo 2\n```\n\n<!-- output: excerpt -->\n```text\n2\n1\n```",
        "```sh\necho 2 s\n```\n\n<!-- varies: 3 s -->\n```text\n3 m\n```",
        "```sh\necho 2 s, 2 m\n```\n\n<!-- varies: 3 s -->\n```text\n3 s, 3 m\n```",
        "```sh\necho …\n```\n\n```text\n…\n```",
        "```sh\ntrue # exit 0\n```",
        "```toml\n$ true\n```",
        "```python\nprint(2)\n```\n\n```text\n3\n```",
        "```python\nprint(2)\n```",
        "```python\nprint(2)\n```\n\nWords.\n\n```text\n2\n```",
        "```python\n1 / 0\n```",
        "```bash\nmake\n```",
        "<!-- run: false -->",
        "<!-- not run: a reason -->\n\nwords between\n\n```bash\nmake\n```",
    ],
)
def test_a_wrong_page_fails(tmp_path, text):
    assert len(page(tmp_path, text).failures) == 1


def test_an_unknown_mark_is_refused(tmp_path):
    with pytest.raises(ValueError, match="line 1"):
        page(tmp_path, "<!-- output: some -->\n")


def test_lines_match():
    assert not matches(["1.00 GiB"], ["1x00 GiB"])
    assert matches(["a long …"], ["a long line"])
    assert not matches(["a long …"], ["a short line"])
    assert matches(["a", "z"], ["a", "b", "z"], Marks(excerpt=True))
    assert not matches(["a", "z"], ["a", "b"], Marks(excerpt=True))
    assert matches(["in 0.3 s of 10 s"], ["in 12.25 s of 10 s"], Marks(varies=["0.3 s"]))
    assert not matches(["in 0.3 s of 10 s"], ["in 12.25 s of 11 s"], Marks(varies=["0.3 s"]))


def test_update_keeps_examples():
    assert updated(["2.79 s", "3"], ["1.5 s", "4"], Marks(varies=["2.79 s"])) == ["2.79 s", "4"]
    assert updated(["3"], ["4"], Marks(excerpt=True)) is None


def test_update_writes_into_the_page(tmp_path):
    result = page(tmp_path, "# Page\n\n```sh\necho 2\n```\n\n```text\n3\n```\n")
    assert result.updates == [(7, 8, ["2"])]


def test_a_command_may_be_long():
    blocks, _ = blocks_of("```sh\necho a \\\n    b\n\necho c\n```")
    assert commands_of(blocks[0]) == ["echo a \\\n    b", "echo c"]
