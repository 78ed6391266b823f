# SPDX-License-Identifier: MIT OR Apache-2.0
"""Has cells of notebooks look as they do without tonnage."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def name_cells(module: Any, after_cell: Callable[..., None]) -> None:
    """Has a kernel of Jupyter call its cells `In[3]`, as notebooks do, and not by a path that does not exist."""
    compiler = module.XCachingCompiler
    named = compiler.get_code_name

    def get_code_name(self: Any, raw_code: str, code: str, number: Any) -> Any:
        if "IPYKERNEL_CELL_NAME" in os.environ or type(number) is not int:
            return named(self, raw_code, code, number)
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None and after_cell not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", after_cell)
        return f"In[{number}]"

    compiler.get_code_name = get_code_name
