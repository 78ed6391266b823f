# SPDX-License-Identifier: MIT OR Apache-2.0
"""Imports the modules of `tonnage_hook`.

Their code has the file name `<tonnage>`, by which everything that shows or records a stack leaves our frames out. The
modules have no file and their packages no path, so nothing that searches `sys.modules` or a path takes them for the
script's. `sitecustomize.py` executes this file: its frames have that name as well.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and executes the modules in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "tonnage_hook":
            return None
        file = os.path.join(self.folder, *name.split("."))
        package = os.path.isdir(file)
        file = os.path.join(file, "__init__.py") if package else f"{file}.py"
        if not os.path.isfile(file):
            return None
        return importlib.machinery.ModuleSpec(name, self, loader_state=file, is_package=package)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        exec(_code(module.__spec__.loader_state), module.__dict__)


def _code(file: str) -> CodeType:
    """The code of a file: the first process of a job compiles it, the others read that."""
    kept = f"{file}.{sys.implementation.cache_tag}-{sys.flags.optimize}"
    try:
        with open(kept, "rb") as stored:
            return marshal.load(stored)
    except (OSError, EOFError, ValueError, TypeError):
        pass
    with open(file, encoding="utf-8") as source:
        code = compile(source.read(), "<tonnage>", "exec", dont_inherit=True)
    if not sys.dont_write_bytecode:
        try:
            # Another process sees all of it or nothing.
            written = f"{kept}.{os.getpid()}"
            with open(written, "xb") as stored:
                marshal.dump(code, stored)
            os.replace(written, kept)
        except OSError:
            pass  # the next process compiles it again
    return code


def install(folder: str) -> None:
    """Makes the package in a folder importable."""
    sys.meta_path.insert(0, _Importer(folder))
