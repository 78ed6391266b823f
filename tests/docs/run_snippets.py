# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs every command and snippet of README.md and docs/, and compares what they print with what the page says.

    python3 tests/docs/run_snippets.py --python VENV/bin/python [--update] [PAGE …]

Each page runs in a folder of its own, whose path reads `/job` in what is compared; VENV, which has the wheel and torch,
is first on the path. What a fenced block means:

console   `$ command` runs in bash; the lines below it are what it prints, stdout and stderr together. `# exit 1`
          behind a command is its exit code, 0 otherwise. Lines joined by `\\` and here-documents are one command.
          Variables and the folder last to the end of the page.
python    runs, all blocks of a page in one process. A `text` block right below it is what it prints; without one,
          it prints nothing.
any       with a first line such as `# train.py` is written to that file.

In what is expected, `…` stands for anything within a line, and alone on its line for any lines. A block that is not
run says why, in an HTML comment above it: `<!-- not run: needs a real GPU -->`; a whole page with
`<!-- page not run: … -->`. `<!-- run: command -->` prepares something that a reader need not see. `sh` and `bash`
blocks are not run, so they need a reason. What is left out is listed at the end. `--update` writes what was printed
into the page, except where `…` stands alone; read the difference before you commit it.
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
COMMENT = re.compile(r"^\s*<!--\s*(?P<what>not run|page not run|run):\s*(?P<text>.*?)\s*-->\s*$")
FILE_NAME = re.compile(r"^# (?P<name>[\w./-]+\.(?:py|toml|ya?ml|csv|json))$")
HERE_DOCUMENT = re.compile(r"<<-?\s*'?(?P<word>[A-Z]+)'?")
EXIT = re.compile(r"\s+# exit (?P<code>\d+)\s*$")
SLOW = re.compile(r"^\$ .*(?:tonnage run|tonnage check|pytest)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s][^)\s]*)\)")
ANYTHING = "…"
#: How a page's folder reads in what is compared.
SHOWN_FOLDER = "/job"
#: No command of a page takes longer, in seconds.
LIMIT = 300


@dataclass
class Block:
    """A fenced block of a page, or a hidden command."""

    language: str
    lines: list[str]
    #: Of the first line inside, counted from 1.
    number: int
    indent: str = ""
    #: Why it is not run.
    reason: str | None = None
    hidden: bool = False


@dataclass
class Command:
    """A command of a console block, with what it should print."""

    text: str
    number: int
    code: int
    expected: list[str]
    #: Where the expected lines are in the page: from, to (exclusive), counted from 0.
    place: tuple[int, int]


@dataclass
class Page:
    """What came out of a page."""

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
    reason = whole = None
    index = 0
    while index < len(lines):
        line = lines[index]
        comment, fence = COMMENT.match(line), FENCE.match(line)
        index += 1
        if comment:
            if comment["what"] == "run":
                blocks.append(Block("console", [comment["text"]], index, hidden=True))
            elif comment["what"] == "page not run":
                whole = comment["text"]
            else:
                reason = comment["text"]
        elif fence:
            start, indent = index, fence["indent"]
            while index < len(lines) and lines[index].strip() != fence["ticks"]:
                index += 1
            inside = [one.removeprefix(indent) for one in lines[start:index]]
            blocks.append(Block(fence["language"], inside, start + 1, indent, reason))
            index += 1
            reason = None
        elif line.strip():
            reason = None
    return blocks, whole


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block."""
    commands: list[Command] = []
    lines, index = block.lines, 0
    while index < len(lines):
        if not lines[index].startswith("$ "):
            raise ValueError(f"line {block.number + index}: a console block begins with `$ command`")
        number = block.number + index
        words = [lines[index][2:]]
        code = 0
        found = EXIT.search(words[0])
        if found:
            code, words[0] = int(found["code"]), words[0][: found.start()]
        document = HERE_DOCUMENT.search(words[0])
        while index + 1 < len(lines) and (words[-1].endswith("\\") or (document and words[-1] != document["word"])):
            index += 1
            words.append(lines[index])
        index += 1
        start = index
        while index < len(lines) and not lines[index].startswith("$ "):
            index += 1
        place = (block.number + start - 1, block.number + index - 1)
        commands.append(Command("\n".join(words), number, code, lines[start:index], place))
    return commands


def matches(expected: list[str], actual: list[str]) -> bool:
    """Whether lines are as expected."""
    pattern = ""
    for line in expected:
        if line.strip() == ANYTHING:
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split(ANYTHING)) + "\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in actual)) is not None


def updated(expected: list[str], actual: list[str]) -> list[str] | None:
    """What the page should say instead, or nothing if that takes a person."""
    if any(line.strip() == ANYTHING for line in expected):
        return None
    loose = [line for line in expected if ANYTHING in line]
    return [next((line for line in loose if matches([line], [one])), one) for one in actual]


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
    """One Python for all blocks of a page. What it and its children print goes to a file, replies through a pipe."""

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
    began = time.monotonic()
    folder = Folder(python)
    try:
        for index, block in enumerate(blocks):
            below = blocks[index + 1] if index + 1 < len(blocks) else None
            if block.reason is not None:
                page.left_out.append(f"{name}:{block.number}: {block.reason}")
            else:
                run_block(page, folder, block, below)
    finally:
        folder.close()
    page.seconds = time.monotonic() - began
    return page


def run_block(page: Page, folder: Folder, block: Block, below: Block | None) -> None:
    where = f"{page.name}:{block.number}"
    file = FILE_NAME.match(block.lines[0]) if block.lines else None
    if file:
        target = folder.path / file["name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
    elif block.hidden:
        code, printed = folder.shell(block.lines[0])
        if code != 0:
            page.failures.append(f"{where}: `{block.lines[0]}` ended with {code}\n" + "\n".join(printed))
    elif block.language == "console":
        try:
            commands = commands_of(block)
        except ValueError as error:
            page.failures.append(f"{page.name}: {error}")
            return
        for command in commands:
            page.ran += 1
            try:
                code, printed = folder.shell(command.text)
            except subprocess.TimeoutExpired:
                page.failures.append(f"{page.name}:{command.number}: `{command.text}` took more than {LIMIT} s")
                continue
            if code != command.code:
                page.failures.append(
                    f"{page.name}:{command.number}: `{command.text}` ended with {code}, not {command.code}\n"
                    + "\n".join(printed)
                )
            compare(page, f"{page.name}:{command.number}", command.expected, printed, command.place, block.indent)
    elif block.language == "python":
        page.ran += 1
        well, printed = folder.run_python("\n".join(block.lines), where)
        if not well:
            page.failures.append(f"{where}: an exception\n" + "\n".join(printed))
            return
        end = block.number + len(block.lines)
        # Nothing but an empty line between the two fences.
        shown = below is not None and below.language == "text" and below.number - end <= 3
        if shown:
            assert below is not None
            start = below.number - 1
            compare(page, where, below.lines, printed, (start, start + len(below.lines)), below.indent)
        elif printed:
            page.failures.append(f"{where}: prints, but no `text` block is below it\n" + "\n".join(printed))
    elif block.language in ("sh", "bash", "shell"):
        page.failures.append(f"{where}: a `{block.language}` block is not run; make it `console`, or say why not")


def compare(
    page: Page, where: str, expected: list[str], printed: list[str], place: tuple[int, int], indent: str
) -> None:
    # Blank lines at the end are for the eye.
    while expected and not expected[-1].strip():
        expected = expected[:-1]
        place = (place[0], place[1] - 1)
    while printed and not printed[-1]:
        printed = printed[:-1]
    if matches(expected, printed):
        return
    difference = difflib.unified_diff(expected, printed, "the page", "printed", lineterm="", n=2)
    page.failures.append(f"{where}: prints something else\n" + "\n".join(difference))
    lines = updated(expected, printed)
    if lines is not None:
        page.updates.append((*place, [indent + line if line else line for line in lines]))


def dead_links() -> list[str]:
    """Links of the pages outside of docs/ to files that are not there; `mkdocs build --strict` knows the others."""
    dead = []
    for page in sorted(ROOT.glob("*.md")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for target in LINK.findall(line):
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
    # Not resolved: the link is what tells Python its environment.
    python = options.python.absolute()
    pages = [page.resolve() for page in options.pages] or default_pages()
    with ThreadPoolExecutor(options.jobs) as pool:
        # Those with the most runs first, so that none is waited for at the end.
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
