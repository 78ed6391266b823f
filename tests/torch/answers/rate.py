# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many answers are right: runs programs of which the truth is known, and counts.

    python tests/torch/answers/rate.py [--only NAME ...] [--ci] [--write] [--tonnage PATH] [--python PATH]

Each program is run dry, explained, and run again with each proposal applied. A row shows what was right (✓), what was
wrong (✗) and what does not apply (·); what was wrong follows in words. Exit code 0 if all is right.
"""

import argparse
import datetime
import os
import re
import sys
import time
from pathlib import Path

from judge import COLUMNS, Judge, Row
from table import PROGRAMS, ROOT

PAGE = ROOT / "docs" / "answers.md"
MARKS = {True: "✓", False: "✗", None: "·"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="programs whose name contains one of these")
    parser.add_argument("--ci", action="store_true", help="only what CI runs, without the runs that find the true need")
    parser.add_argument("--write", action="store_true", help="write the totals and the table to docs/answers.md")
    parser.add_argument("--text", action="store_true", help="print what explain prints, too")
    parser.add_argument("--tonnage", default=os.environ.get("TONNAGE", str(ROOT / "target" / "debug" / "tonnage")))
    parser.add_argument("--python", default=os.environ.get("TORCH_PYTHON", sys.executable))
    options = parser.parse_args()

    programs = [program for program in PROGRAMS if program.ci or not options.ci]
    if options.only:
        programs = [program for program in programs if any(name in program.name for name in options.only)]
    there = [program for program in programs if (program.recording or program.path).exists()]
    for program in programs:
        if program not in there:
            print(f"{program.name}: its recording is not here")
    judge = Judge(str(Path(options.tonnage).resolve()), options.python, thorough=not options.ci)
    width = max(len(program.name) for program in there)
    print(f"{'program':{width}}  {'  '.join(COLUMNS)}  seconds")
    rows = []
    for program in there:
        started = time.monotonic()
        rows.append(row := judged(judge, program))
        marks = "  ".join(f"{MARKS[row.marks[column]]:^{len(column)}}" for column in COLUMNS)
        print(f"{program.name:{width}}  {marks}  {time.monotonic() - started:7.0f}")
        for complaint in row.complaints:
            print(f"    {complaint}")
        if options.text:
            print(row.text)
        sys.stdout.flush()
    print(totals(rows))
    if options.write:
        write(rows)
    return 0 if all(row.right for row in rows) else 1


def judged(judge, program):
    try:
        return judge.judge(program)
    except Exception as error:  # a command that answers in no way that can be read is wrong, and the others go on
        row = Row(program)
        row.hold("verdict", False, f"{type(error).__name__}: {error}")
        return row


def totals(rows):
    """One line: of all that was judged, how much was right."""

    def rate_of(*columns):
        judged = [row for row in rows if any(row.marks[column] is not None for column in columns)]
        right = [row for row in judged if all(row.marks[column] is not False for column in columns)]
        return f"{len(right)} of {len(judged)}"

    applied, kept = sum(row.applied for row in rows), sum(row.kept for row in rows)
    return (
        f"verdicts {rate_of('verdict')}, needs {rate_of('need')}, causes {rate_of('cause')}, "
        f"headlines {rate_of('headline')}, holders {rate_of('holder')}, advice {rate_of('advice')}, "
        f"fixes that kept their word {kept} of {applied}"
    )


def write(rows):
    """Puts the totals and the table between the marks of the page."""
    today = datetime.date.today().isoformat()
    lines = ["| program | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        lines.append(f"| `{row.program.name}` | " + " | ".join(MARKS[row.marks[column]] for column in COLUMNS) + " |")
    for mark, text in (("totals", f"{today}: {totals(rows)}."), ("table", "\n".join(lines))):
        page = PAGE.read_text()
        pattern = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
        changed = re.sub(pattern, lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page, flags=re.S)
        PAGE.write_text(changed)


if __name__ == "__main__":
    sys.exit(main())
