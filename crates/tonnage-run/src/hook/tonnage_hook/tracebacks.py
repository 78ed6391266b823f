# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads tracebacks and takes our frames off them."""

import types


def frames_of(traceback: types.TracebackType | None) -> list[tuple[str, str, int | None]]:
    """The frames of an exception, innermost first, with the lines that raised: a frame that caught it has gone on."""
    frames: list[tuple[str, str, int | None]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_name, code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames[:-65:-1]


def _without_our_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback of the script's own frames. One that is all ours stays as it is: the fault is ours."""
    kept, one = [], traceback
    while one is not None:
        if one.tb_frame.f_code.co_filename != "<tonnage>":
            kept.append(one)
        one = one.tb_next
    shown: types.TracebackType | None = None
    for one in reversed(kept):
        shown = types.TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shown or traceback


def hide_our_frames(error: BaseException) -> None:
    """Takes our frames off the tracebacks of an exception and of all that it refers to."""
    waiting: list[BaseException | None] = [error]
    seen = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_our_frames(one.__traceback__)
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
