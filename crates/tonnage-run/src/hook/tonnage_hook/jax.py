# SPDX-License-Identifier: MIT OR Apache-2.0
"""Ends a job that would compute with JAX: a dry run cannot follow it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys

from tonnage_hook.notes import write_to_standin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class JaxFinder(importlib.abc.MetaPathFinder):
    """Notices that JAX loads its part for CUDA. It looks for the files of a driver that is not there and goes on
    without a word on the CPU, maybe for hours: where torch is not in the process, the job is ended here."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if not name.startswith("jax_plugins.xla_cuda"):
            return
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        write_to_standin(foreign={"name": "JAX", "library": (spec and spec.origin) or name, "how": "cpu"})
        if "torch" not in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(2)
        # Its check of CUDA's libraries would end the process by a signal.
        raise ModuleNotFoundError("tonnage: a dry run cannot follow JAX on a GPU; it computes on the CPU", name=name)
