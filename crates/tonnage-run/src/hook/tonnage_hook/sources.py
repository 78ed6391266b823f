# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads other text for some files: that of a variant, in which a constant has another value.

The script that Python was started with is opened by C code, which the stand-in redirects; here is what Python itself
loads: modules, the script again in a process that was spawned, and what a program opens to read, such as its
configuration. No file of the user is written.
"""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import io
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def replace(sources: Mapping[str, str]) -> None:
    """`sources` has the file to read for each file that is replaced."""
    known = {os.path.realpath(path): copy for path, copy in sources.items()}
    # A link may have another name than the file.
    names = {os.path.basename(path) for path in (*sources, *known)}

    def copy_of(path: Any) -> str | None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        path = os.fsdecode(path)
        return known.get(os.path.realpath(path)) if os.path.basename(path) in names else None

    open_code = io.open_code

    def open_other_code(path: str) -> Any:
        return open_code(copy_of(path) or path)

    io.open_code = open_other_code
    loader = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def get_other_code(self: Any, fullname: str) -> Any:
        path = self.get_filename(fullname)
        copy = copy_of(path)
        if copy is None:
            return get_code(self, fullname)
        # Compiled here: a cache would hold the code of the file as it is.
        with open(copy, "rb") as file:
            return self.source_to_code(file.read(), path)

    loader.get_code = get_other_code  # type: ignore[method-assign]
    opened = io.open

    @functools.wraps(opened)
    def open_other(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        copy = copy_of(file) if not set("wax+").intersection(mode) else None
        return opened(copy or file, mode, *arguments, **options)

    io.open = builtins.open = open_other
