# SPDX-License-Identifier: MIT OR Apache-2.0
"""Notes which modules a job imports, and what it changes in its environment before torch: a fork server does the same
once for all variants of the job."""

from __future__ import annotations

import json
import os
import sys

from tonnage_hook.libraries import is_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType


class Imports:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.before = dict(environment)
        self.changed: dict[str, str | None] = {}
        self.process: int | None = None
        self.path = os.path.join(environment["TONNAGE_RUN"], "imports")
        try:
            # The first process of the job is the one that counts.
            open(self.path, "x").close()
            self.process = os.getpid()
        except FileExistsError:
            pass

    def before_torch(self) -> None:
        """Called before torch is imported: what a script sets for torch, it sets before."""
        now = dict(os.environ)
        names = self.before.keys() | now.keys()
        self.changed = {name: now.get(name) for name in sorted(names) if self.before.get(name) != now.get(name)}

    def write(self) -> None:
        """Writes what is known into the folder of the run."""
        if os.getpid() != self.process:
            return

        def is_installed(module: ModuleType) -> bool:
            file = getattr(module, "__file__", None)
            # The files of a project may look at its arguments, and are imported by each variant.
            return isinstance(file, str) and is_library(file)

        ours = ("__main__", "sitecustomize", "usercustomize")
        names = [
            name
            for name, module in list(sys.modules.items())
            if name not in ours and is_installed(module) and getattr(module, "__spec__", None) is not None
        ]
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({"modules": names, "environment": self.changed}, file)
