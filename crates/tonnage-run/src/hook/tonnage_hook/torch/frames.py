# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps our functions out of what torch compiles."""


def skip_compiler(torch, function):
    """Keeps torch.compile from compiling one of our own functions, and what it calls."""
    frames = torch._C._dynamo.eval_frame
    try:
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    except AttributeError:
        frames.skip_code(function.__code__)
