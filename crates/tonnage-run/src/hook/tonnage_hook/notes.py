# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes notes, JSON objects, to the log of the process."""

from __future__ import annotations

import json

from tonnage_hook.settings import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NOTE = 4
# The function of the recorder, once there is one.
_writers: list[Callable[..., None]] = []


def write_notes_by(function: Callable[..., None]) -> None:
    """Has a recorder write all notes."""
    _writers.append(function)


def write_note(**facts: object) -> None:
    """Writes a note by the recorder, or without one where no framework is imported."""
    if _writers:
        _writers[-1](**facts)
    elif not SETTINGS.get("record"):
        write_to_standin(**facts)


def write_limitation(code: str, message: str, affects_figures: bool = False) -> None:
    """Writes a limitation of the verdict."""
    write_note(limitation={"code": code, "message": message, "affects_figures": affects_figures})


def write_to_standin(**facts: object) -> None:
    """Writes a note without a recorder, which may be absent."""
    import ctypes

    note = json.dumps(facts).encode()
    ctypes.CDLL(None).tonnage_record(ctypes.c_uint32(NOTE), note, ctypes.c_size_t(len(note)))
