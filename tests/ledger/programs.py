# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiles the C programs of this folder against the stand-in."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def compiled(name, folder):
    """The program made of NAME.c with CFLAGS, linked with the stand-in beside the command."""
    standin = Path(os.environ["TONNAGE"]).resolve().parent / "libtonnage_standin.so"
    program = Path(folder) / name
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *os.environ.get("CFLAGS", "").split()]
    line = ["cc", *flags, HERE / f"{name}.c", "-o", program, standin]
    subprocess.run(line, check=True)
    return program
