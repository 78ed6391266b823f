# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes docs/assets/terminal.svg: the commands of the README's first page, run for real and drawn as a terminal.

    python3 docs/assets/make_terminal.py --python VENV/bin/python [--tonnage PATH] [--check]

VENV holds torch and the tonnage package; `--tonnage` takes the command from elsewhere. `STORY` is what is drawn: each
command with some lines of its standard output. The output of a script itself (a traceback) goes to standard error and
is left out. `--check` writes nothing, and fails if the picture would show other words than it does now.

The picture is still: previews, screenshots and PDFs show all of its lines.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PICTURE = Path(__file__).with_name("terminal.svg")
COLUMNS = 88
#: The width at which commands wrap their output without a terminal.
PRINTED_COLUMNS = 100
SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
#: Each command, and the beginnings of the lines to draw; `+` takes the lines that continue one, too.
STORY = [
    (
        "tonnage run --gpu rtx3090 serve.py",
        ["does not fit", "  requested"],
    ),
    (
        "tonnage explain serve.tonnage",
        ["out of memory", "  fix+", "  because+", "  held by+"],
    ),
    (f"export {SETTING}", []),
    (
        "tonnage run --gpu rtx3090 serve.py",
        ["fits on", "  headroom"],
    ),
]
#: Pixels of one character and of one line.
WIDE, HIGH = 8.4, 20
EDGE, BAR = 18, 34
SETTINGS_OF_OTHERS = ("TONNAGE", "PYTORCH", "GITHUB", "VIRTUAL_ENV")


@dataclass
class Line:
    """One line of the terminal."""

    text: str
    kind: str


def printed(python: Path, tonnage: Path | None) -> list[Line]:
    """Runs the story in a separate folder."""
    with tempfile.TemporaryDirectory(prefix="tonnage-picture-") as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS_OF_OTHERS)}
        path = [os.fspath(one) for one in (tonnage and tonnage.parent, python.parent) if one]
        environment |= {
            "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
            "NO_COLOR": "1",
            "TONNAGE_NO_PROGRESS": "1",
        }
        subprocess.run([python, "-m", "tonnage.examples"], cwd=folder, env=environment, check=True, capture_output=True)
        lines: list[Line] = []
        for command, wanted in STORY:
            lines.append(Line(command, "command"))
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                environment[name] = value
                continue
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode > 1:
                raise SystemExit(f"`{command}` ended with {done.returncode}\n{done.stdout}{done.stderr}")
            lines += drawn(command, done.stdout.splitlines(), wanted)
        return lines


def drawn(command: str, output: list[str], wanted: list[str]) -> list[Line]:
    """The wanted lines, no wider than the terminal."""
    lines: list[Line] = []
    for beginning in wanted:
        start = beginning.removesuffix("+")
        found = next((index for index, line in enumerate(output) if line.startswith(start)), None)
        if found is None:
            raise SystemExit(f"`{command}` prints no line that begins with `{start}`:\n" + "\n".join(output))
        end = found + 1
        while beginning.endswith("+") and end < len(output) and output[end].startswith(" " * 12):
            end += 1
        if beginning.endswith("+"):
            # One paragraph, so that it can be wrapped anew.
            for text in rejoined(output[found:end]):
                lines += wrapped(text, 13)
        else:
            lines += wrapped(answer(output[found:]), 4)
    return lines


def answer(lines: list[str]) -> str:
    """The first line, with the lines that continue it: those whose first word did not fit on the line before."""
    whole = lines[0]
    for before, line in pairwise(lines):
        # The verdict is one line, however long.
        is_wrapped = len(before) <= PRINTED_COLUMNS
        if not is_wrapped or not line.strip() or len(before) + 1 + len(line.split()[0]) <= PRINTED_COLUMNS:
            break
        whole += " " + line.strip()
    return whole


def rejoined(lines: list[str]) -> list[str]:
    """Undoes the wrapping of a titled paragraph; lines that are set in further stay alone."""
    whole = [lines[0]]
    for line in lines[1:]:
        if line.startswith(" " * 14) or whole[-1].startswith(" " * 14):
            whole.append(line)
        else:
            whole[-1] += " " + line.strip()
    return whole


def wrapped(text: str, indent: int) -> list[Line]:
    answer = not text.startswith(" ")
    kind = ("no" if re.match("does not|out of", text) else "yes") if answer else "output"
    if SETTING in text and text.strip() == SETTING:
        kind = "fix"
    if len(text) <= COLUMNS:
        return [Line(text, kind)]
    folded = textwrap.wrap(
        text.strip(),
        COLUMNS - (len(text) - len(text.lstrip())),
        drop_whitespace=True,
        replace_whitespace=False,
        subsequent_indent=" " * (indent - (len(text) - len(text.lstrip()))),
        break_on_hyphens=False,
    )
    return [Line(text[: len(text) - len(text.lstrip())] + line, kind) for line in folded]


def picture(lines: list[Line]) -> str:
    """The SVG of a terminal with these lines."""
    width = round(2 * EDGE + WIDE * COLUMNS)
    height = BAR + EDGE + HIGH * len(lines) + HIGH * sum(line.kind == "command" for line in lines[1:]) // 2
    rows = []
    y = BAR + HIGH
    for number, line in enumerate(lines):
        if line.kind == "command" and number:
            y += HIGH // 2
        prompt = '<tspan class="prompt">$ </tspan>' if line.kind == "command" else ""
        text = html.escape(line.text, quote=False)
        title = re.match(r"  (\S.{0,11}?(?=  | (?=\d)))", line.text)
        if line.kind == "output" and title:
            end = title.end(1)
            text = f'<tspan class="title">{html.escape(line.text[:end], quote=False)}</tspan>' + html.escape(
                line.text[end:], quote=False
            )
        rows.append(f'<text x="{EDGE}" y="{y}" class="{line.kind}">{prompt}{text}</text>')
        y += HIGH
    spoken = html.escape("; ".join(line.text.strip() for line in lines if line.kind in ("command", "no", "yes", "fix")))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
width="{width}" height="{height}" role="img" aria-label="{spoken}">
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace;\
white-space:pre;fill:#c9d1d9}}
.command{{fill:#fff;font-weight:600}} .prompt{{fill:#7ee787}} .title{{fill:#8b949e}}
.no{{fill:#ff9b93;font-weight:600}} .yes{{fill:#7ee787;font-weight:600}} .fix{{fill:#79c0ff;font-weight:600}}
</style>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="#161b22" stroke="#444c56"/>
<g fill="#57606a"><circle cx="20" cy="17" r="5"/><circle cx="38" cy="17" r="5"/><circle cx="56" cy="17" r="5"/></g>
{chr(10).join(rows)}
</svg>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws docs/assets/terminal.svg from real commands.")
    parser.add_argument("--python", type=Path, required=True, help="of an environment with torch and the wheel")
    parser.add_argument("--tonnage", type=Path, help="the command, where it is not that of the environment")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the picture is not current")
    options = parser.parse_args()
    made = picture(printed(options.python.absolute(), options.tonnage and options.tonnage.absolute()))
    if not options.check:
        PICTURE.write_text(made, encoding="utf-8")
        print(f"wrote {PICTURE.name}")
    elif made != PICTURE.read_text(encoding="utf-8"):
        print(f"{PICTURE} is not what the commands print now; make it again with {Path(__file__).name}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
