# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs every command and snippet of README.md and docs/, and compares their output with the page.

    python3 tests/docs/run_snippets.py --python VENV/bin/python [--update] [PAGE …]

Each page runs in its own folder, whose path reads `/job` in what is compared; VENV, which has the wheel and torch,
is first on the path. The meaning of a fenced block:

sh        runs in bash, one command after the other. A `text` block right below it is what the commands print, stdout
          and stderr together; without one, they print nothing. Lines joined by `\\` and here-documents are one command.
          Variables and the folder last to the end of the page.
python    runs, all blocks of a page in one process. A `text` block right below it is what it prints.
any       with a first line such as `# train.py` is written to that file.

Settings that a reader need not see stand in HTML comments above a block, one for each line:

<!-- exit: 1 -->             the exit code of the block's last command; all others end with 0
<!-- output: not shown -->   the block may print anything
<!-- output: excerpt -->     the lines of the `text` block are printed in this order, others may stand between them
<!-- varies: 2.31 s -->      these words of the `text` block are an example: their digits may be others. Several are
                             separated by ` | `
<!-- not run: a reason -->   the block is not run; `page not run` leaves out a whole page
<!-- run: command -->        prepares something

A `…` within a line stands for anything: the line is cut there. A page with a lone `…`, a prompt or an exit code in a
block fails. Skipped blocks are listed at the end. `--update` writes what was printed into the page, except into
excerpts; read the difference before you commit it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)(?P<rest>.*)$")
COMMENT = re.compile(r"^\s*<!--\s*(?P<what>not run|page not run|run|exit|output|varies):\s*(?P<text>.*?)\s*-->\s*$")
FILE_NAME = re.compile(r"^# (?P<name>[\w./-]+\.(?:py|toml|ya?ml|csv|json))$")
HERE_DOCUMENT = re.compile(r"<<-?\s*'?(?P<word>[A-Z]+)'?")
SLOW = re.compile(r"^(?:tonnage run|tonnage check|python -m pytest)", re.MULTILINE)
#: What only a test needs, and a reader would stumble over.
HARNESS = re.compile(r"^(?:\$ |\s*…\s*$)|\s# exit \d+\s*$")
LINK = re.compile(r"\]\(([^)#\s][^)\s]*)\)")
#: Files of this repository by their address; README.md is also shown where relative links lead nowhere.
OWN = re.compile(r"^https://(github\.com/tonnage/tonnage/blob|raw\.githubusercontent\.com/tonnage/tonnage)/main/")
#: How a page's folder reads in what is compared.
SHOWN_FOLDER = "/job"
#: No command of a page takes longer, in seconds.
LIMIT = 300


@dataclass
class Marks:
    """The settings in the comments above a block."""

    #: Why it is not run.
    reason: str | None = None
    code: int = 0
    shown: bool = True
    excerpt: bool = False
    #: Words of the expected output whose digits may be others.
    varies: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A fenced block of a page, or a hidden command."""

    language: str
    lines: list[str]
    #: Of the first line inside, counted from 1.
    number: int
    indent: str = ""
    marks: Marks = field(default_factory=Marks)
    hidden: bool = False
    #: Whether nothing but comments and empty lines stand between it and the block above.
    follows: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Where its lines are in the page: from, to (exclusive), counted from 0."""
        return self.number - 1, self.number - 1 + len(self.lines)


@dataclass
class Page:
    """The result of a page."""

    name: str
    ran: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    #: Lines to put in place of others: from, to, lines.
    updates: list[tuple[int, int, list[str]]] = field(default_factory=list)


def blocks_of(text: str) -> tuple[list[Block], str | None]:
    """The blocks of a page, and why none of them is run, if that is so."""
    lines = text.splitlines()
    blocks: list[Block] = []
    marks, follows = Marks(), False
    whole = None
    index = 0
    while index < len(lines):
        line = lines[index]
        comment, fence = COMMENT.match(line), FENCE.match(line)
        index += 1
        if comment:
            words = comment["text"]
            match comment["what"]:
                case "run":
                    blocks.append(Block("sh", [words], index, hidden=True))
                    follows = False
                case "page not run":
                    whole = words
                case "not run":
                    marks.reason = words
                case "exit":
                    marks.code = int(words)
                case "varies":
                    marks.varies += words.split(" | ")
                case _:
                    if words not in ("excerpt", "not shown"):
                        raise ValueError(f"line {index}: output is `excerpt` or `not shown`, not `{words}`")
                    marks.excerpt, marks.shown = words == "excerpt", words != "not shown"
        elif fence:
            start, indent = index, fence["indent"]
            while index < len(lines) and lines[index].strip() != fence["ticks"]:
                index += 1
            inside = [one.removeprefix(indent) for one in lines[start:index]]
            blocks.append(Block(fence["language"], inside, start + 1, indent, marks, follows=follows))
            index += 1
            marks, follows = Marks(), True
        elif line.strip():
            marks, follows = Marks(), False
    return blocks, whole


def commands_of(block: Block) -> list[str]:
    """The commands of a block, in order."""
    commands: list[str] = []
    lines, index = block.lines, 0
    while index < len(lines):
        words = [lines[index]]
        document = HERE_DOCUMENT.search(words[0])
        while index + 1 < len(lines) and (words[-1].endswith("\\") or (document and words[-1] != document["word"])):
            index += 1
            words.append(lines[index])
        index += 1
        if words != [""]:
            commands.append("\n".join(words))
    return commands


def pattern_of(line: str, varies: list[str]) -> str:
    """A regular expression for a line that is expected."""
    pattern = ".*".join(re.escape(part) for part in line.rstrip().split("…"))
    for words in varies:
        pattern = pattern.replace(
            re.escape(words), re.sub(r"(?:\d|(?<=\d)\\?[.,](?=\d))+", r"[\\d.,]+", re.escape(words))
        )
    return pattern


def matches(expected: list[str], actual: list[str], marks: Marks | None = None) -> bool:
    """Whether lines are as expected."""
    marks = marks or Marks()
    patterns = [re.compile(pattern_of(line, marks.varies)) for line in expected]
    if marks.excerpt:
        rest = iter(actual)
        return all(any(pattern.fullmatch(line) for line in rest) for pattern in patterns)
    return len(patterns) == len(actual) and all(p.fullmatch(line) for p, line in zip(patterns, actual))


def updated(expected: list[str], actual: list[str], marks: Marks) -> list[str] | None:
    """The new text of the page, or nothing if that takes a person."""
    if marks.excerpt:
        return None
    return [next((line for line in expected if matches([line], [one], marks)), one) for one in actual]


class Folder:
    """Where a page runs: its files, its shell variables and its Python."""

    def __init__(self, python: Path) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="tonnage-docs-")).resolve()
        self.path = self.base / "job"
        self.path.mkdir()
        self.python = python
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TONNAGE", "PYTORCH", "PYTEST", "GITHUB", "VIRTUAL_ENV"))
        }
        self.environment |= {
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
            "TONNAGE_NO_PROGRESS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "100",
        }
        (self.base / "variables").write_text("", encoding="utf-8")
        (self.base / "folder").write_text(os.fspath(self.path), encoding="utf-8")
        self.interpreter: Interpreter | None = None

    def shell(self, command: str) -> tuple[int, list[str]]:
        """Runs a command where the last one left off."""
        base = shlex.quote(os.fspath(self.base))
        script = (
            f'. {base}/variables; cd "$(cat {base}/folder)"\n{command}\n'
            f"tonnage_code=$?; export -p >{base}/variables; pwd >{base}/folder; exit $tonnage_code"
        )
        done = subprocess.run(
            ["bash", "-c", script],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            check=False,
        )
        return done.returncode, self.shown(done.stdout)

    def run_python(self, code: str, name: str) -> tuple[bool, list[str]]:
        """Runs a block in the page's Python; whether it ended well, and what it printed."""
        if self.interpreter is None:
            self.interpreter = Interpreter(self)
        well, printed = self.interpreter.run(code, name)
        return well, self.shown(printed)

    def shown(self, printed: bytes) -> list[str]:
        text = printed.decode("utf-8", "replace")
        # With the root, and without it.
        for skipped in (0, 1):
            text = text.replace(os.fspath(self.path)[skipped:], SHOWN_FOLDER[skipped:])
        return [line.rstrip() for line in text.splitlines()]

    def close(self) -> None:
        if self.interpreter is not None:
            self.interpreter.close()
        shutil.rmtree(self.base, ignore_errors=True)


class Interpreter:
    """One Python for all blocks of a page. The output of it and its children goes to a file, replies through a pipe."""

    LOOP = """
import json, sys, traceback
replies, names = open(int(sys.argv.pop()), "w"), {"__name__": "__main__"}
for line in sys.stdin:
    code, name = json.loads(line)
    try:
        exec(compile(code, name, "exec"), names)
        well = True
    except BaseException:
        traceback.print_exc()
        well = False
    sys.stdout.flush(), sys.stderr.flush()
    print(json.dumps(well), file=replies, flush=True)
"""

    def __init__(self, folder: Folder) -> None:
        self.printed = open(folder.base / "printed", "w+b")
        ours, theirs = os.pipe()
        # Only the folder that commands run in is on the path, as for one who types.
        self.process = subprocess.Popen(
            [os.fspath(folder.python), "-c", self.LOOP, str(theirs)],
            cwd=(folder.base / "folder").read_text(encoding="utf-8").strip(),
            env=folder.environment,
            stdin=subprocess.PIPE,
            stdout=self.printed,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs],
            text=True,
        )
        os.close(theirs)
        self.replies = open(ours, encoding="utf-8")

    def run(self, code: str, name: str) -> tuple[bool, bytes]:
        assert self.process.stdin is not None
        start = os.fstat(self.printed.fileno()).st_size
        self.process.stdin.write(json.dumps([code, name]) + "\n")
        self.process.stdin.flush()
        reply = self.replies.readline()
        self.printed.seek(start)
        printed = self.printed.read()
        self.printed.seek(0, os.SEEK_END)
        return bool(reply) and json.loads(reply), printed

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.replies.close()
        self.printed.close()


def run_page(path: Path, python: Path) -> Page:
    """Runs a page from top to bottom, to its end even if something fails."""
    name = os.path.relpath(path, ROOT)
    page = Page(name)
    blocks, whole = blocks_of(path.read_text(encoding="utf-8"))
    if whole is not None:
        page.left_out.append(f"{name}: {whole}")
        return page
    page.failures += marks_of_the_harness(name, blocks)
    began = time.monotonic()
    folder = Folder(python)
    try:
        for index, block in enumerate(blocks):
            below = blocks[index + 1] if index + 1 < len(blocks) else None
            if block.marks.reason is not None:
                page.left_out.append(f"{name}:{block.number}: {block.marks.reason}")
            else:
                run_block(page, folder, block, below)
    finally:
        folder.close()
    page.seconds = time.monotonic() - began
    return page


def run_block(page: Page, folder: Folder, block: Block, below: Block | None) -> None:
    where = f"{page.name}:{block.number}"
    file = FILE_NAME.match(block.lines[0]) if block.lines else None
    output = below if below is not None and below.language == "text" and below.follows else None
    if file:
        target = folder.path / file["name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        # JSON has no comments: the line with the name is for the reader alone.
        lines = block.lines[1:] if target.suffix == ".json" else block.lines
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif block.hidden:
        code, printed = folder.shell(block.lines[0])
        if code != 0:
            page.failures.append(f"{where}: `{block.lines[0]}` ended with {code}\n" + "\n".join(printed))
    elif block.language == "sh":
        commands, printed = commands_of(block), []
        for index, command in enumerate(commands):
            page.ran += 1
            try:
                code, lines = folder.shell(command)
            except subprocess.TimeoutExpired:
                page.failures.append(f"{where}: `{command}` took more than {LIMIT} s")
                return
            printed += lines
            wanted = block.marks.code if index + 1 == len(commands) else 0
            if code != wanted:
                page.failures.append(f"{where}: `{command}` ended with {code}, not {wanted}\n" + "\n".join(printed))
                return
        compare(page, where, block, output, printed)
    elif block.language == "python":
        page.ran += 1
        well, printed = folder.run_python("\n".join(block.lines), where)
        if not well:
            page.failures.append(f"{where}: an exception\n" + "\n".join(printed))
            return
        compare(page, where, block, output, printed)
    elif block.language in ("console", "bash", "shell"):
        page.failures.append(f"{where}: a `{block.language}` block is not run; make it `sh`, or say why not")


def compare(page: Page, where: str, block: Block, output: Block | None, printed: list[str]) -> None:
    """Notes the output of a block as a failure, if the page has other output."""
    if output is None:
        if printed and block.marks.shown:
            page.failures.append(f"{where}: prints, but no `text` block is below it\n" + "\n".join(printed))
        return
    expected, (start, end) = output.lines, output.place
    # Blank lines at both ends are for the eye.
    while printed and not printed[-1]:
        printed = printed[:-1]
    while printed and not printed[0]:
        printed = printed[1:]
    if matches(expected, printed, output.marks):
        return
    difference = difflib.unified_diff(expected, printed, "the page", "printed", lineterm="", n=2)
    page.failures.append(f"{where}: prints something else\n" + "\n".join(difference))
    lines = updated(expected, printed, output.marks)
    if lines is not None:
        page.updates.append((start, end, [output.indent + line if line else line for line in lines]))


def marks_of_the_harness(name: str, blocks: list[Block]) -> list[str]:
    """Places of a page where a reader sees what only a test needs."""
    return [
        f"{name}:{block.number + index}: a prompt, lone dots or an exit code: `{line}`"
        for block in blocks
        if not block.hidden
        for index, line in enumerate(block.lines)
        if HARNESS.search(line)
    ]


def dead_links() -> list[str]:
    """Links of the pages outside of docs/ to files that are not there; `mkdocs build --strict` knows the others."""
    dead = []
    for page in sorted(ROOT.glob("*.md")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for target in LINK.findall(line):
                target = OWN.sub("", target)
                if "://" not in target and not (ROOT / target.partition("#")[0]).exists():
                    dead.append(f"{page.name}:{number}: {target} is not there")
    return dead


def default_pages() -> list[Path]:
    """README and all pages but those that are made from the code."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in page.parts]
    return [ROOT / "README.md", *pages]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every command and snippet of the documentation.")
    parser.add_argument("--python", type=Path, required=True, help="of the environment with the wheel and torch")
    parser.add_argument("--jobs", type=int, default=2, help="pages at the same time")
    parser.add_argument("--update", action="store_true", help="write what was printed into the pages")
    parser.add_argument("pages", nargs="*", type=Path, help="all, unless some are named")
    options = parser.parse_args()
    # Not resolved: Python finds its environment by the link.
    python = options.python.absolute()
    pages = [page.resolve() for page in options.pages] or default_pages()
    with ThreadPoolExecutor(options.jobs) as pool:
        # Pages with the most runs first, so that none is waited for at the end.
        order = sorted(pages, key=lambda page: -len(SLOW.findall(page.read_text(encoding="utf-8"))))
        futures = {page: pool.submit(run_page, page, python) for page in order}
        results = [futures[page].result() for page in pages]
    for result, path in zip(results, pages):
        for failure in result.failures:
            print(f"\nFAILED {failure}")
        if options.update and result.updates:
            lines = path.read_text(encoding="utf-8").splitlines()
            for start, end, new in sorted(result.updates, reverse=True):
                lines[start:end] = new
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            print(f"\nwrote {result.name} anew: {len(result.updates)} places")
    dead = [] if options.pages else dead_links()
    for link in dead:
        print(f"\nFAILED {link}")
    print("\nnot run:")
    for result in results:
        for reason in result.left_out:
            print(f"  {reason}")
    print("\nrun:")
    for result in results:
        if result.ran:
            print(f"  {result.name}: {result.ran} in {result.seconds:.0f} s, {len(result.failures)} failed")
    failed = len(dead) + sum(len(result.failures) for result in results)
    print(f"\n{sum(result.ran for result in results)} commands and snippets, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
