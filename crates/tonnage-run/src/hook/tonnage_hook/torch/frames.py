# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps our functions out of what torch compiles."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def skip_compiler(torch: Any, function: Any) -> None:
    """Keeps torch.compile from compiling one of our own functions, and what it calls."""
    frames = torch._C._dynamo.eval_frame
    try:
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except AttributeError:
        frames.skip_code(function.__code__)
