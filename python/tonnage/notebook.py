# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cell magic of notebooks: `%load_ext tonnage`, then `%%tonnage --gpu a100-40gb`.

The cell runs dry in a separate process, so it must stand alone: names from other cells are missing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from tonnage._ask import Error
from tonnage._dry_run import dry_run
from tonnage._results import Verdict


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="%%tonnage", description="Run this cell dry and show its timeline.")
    parser.add_argument("--gpu", help="a name of `tonnage gpus`; TONNAGE_GPU or tonnage.toml without it")
    parser.add_argument("--gpus", type=int, default=1, help="how many of them")
    parser.add_argument("--capacity", help="memory of the GPU instead of the catalogue's, e.g. 24GiB")
    parser.add_argument("-o", "--output", help="where to keep the recording")
    parser.add_argument("--name", help="a variable for the verdict")
    return parser


def register(shell: Any) -> None:
    """Gives a shell of IPython the magic."""

    def magic(line: str, cell: str) -> Verdict | None:
        try:
            options = _arguments().parse_args(shlex.split(line))
        except SystemExit:
            # argparse has printed the error, or printed its help.
            return None
        with tempfile.TemporaryDirectory(prefix="tonnage-cell-") as folder:
            script = Path(folder) / "cell.py"
            script.write_text(cell, encoding="utf-8")
            try:
                verdict = dry_run(
                    [script],
                    gpu=options.gpu,
                    gpus=options.gpus,
                    capacity=options.capacity,
                    output=options.output,
                    progress=False,
                )
            except Error as error:
                # A mistyped name needs its hint and no traceback of ours.
                print(f"error: {error}", file=sys.stderr)
                return None
            # The cell is the only file of its folder, which is gone.
            verdict._text = verdict._text.replace(f"{folder}/", "")
        if options.name:
            shell.user_ns[options.name] = verdict
        return verdict

    magic.__doc__ = _arguments().format_help()
    shell.register_magic_function(magic, "cell", "tonnage")
