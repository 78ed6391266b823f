# SPDX-License-Identifier: MIT OR Apache-2.0
"""Calls a function with a module when that has been imported."""

from __future__ import annotations

import importlib.abc
import sys

from tonnage_hook.failures import swallow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def call_after_import(name: str, call: Callable[[Any], object], before: Callable[[], object] | None = None) -> None:
    """Calls a function with a module: now if it is imported, else after its import."""
    if name in sys.modules:
        call(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport(name, call, before))


def move_to_front() -> None:
    """Moves the watchers before the finders of the user's `sitecustomize`, which may find the same modules."""
    sys.meta_path.sort(key=lambda finder: not isinstance(finder, AfterImport))


class AfterImport(importlib.abc.MetaPathFinder):
    """Lets a module be imported as usual, then calls a function with it.

    Many packages look whether a module is there before they import it, so this
    stays until it has really been imported.
    """

    def __init__(self, name: str, call: Callable[[Any], object], before: Callable[[], object] | None = None) -> None:
        self.name = name
        self.call = call
        self.before = before

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        # The finders before this one did not find it, and another one of this class may watch the same module.
        position = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        for finder in sys.meta_path[position:]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        else:
            return None
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        """Called when the module has been executed."""
        if self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        try:
            self.call(module)
        except Exception as error:
            # A version that we do not know: the program goes on with it as it is.
            swallow("AfterImport.imported", error)
            print(f"tonnage: {self.name} is left as it is: {error}", file=sys.stderr)


class _Loader(importlib.abc.Loader):
    """Executes a module by the loader of its package, which stays as it is: it may have slots, or load many modules."""

    def __init__(self, inner: Any, watcher: AfterImport) -> None:
        self.inner = inner
        self.watcher = watcher

    def create_module(self, spec: ModuleSpec) -> Any:
        create = getattr(self.inner, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module: Any) -> None:
        # The module sees the loader that it has without us.
        module.__spec__.loader = module.__loader__ = self.inner
        if self.watcher.before is not None:
            self.watcher.before()
        self.inner.exec_module(module)
        self.watcher.imported(module)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)
