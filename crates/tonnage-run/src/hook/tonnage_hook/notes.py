# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes notes, JSON objects, to the log of the process."""

from __future__ import annotations

import json

from tonnage_hook.settings import SETTINGS
from tonnage_hook.wire import RECORD_NOTE, bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from typing_extensions import Unpack

    from tonnage_hook.wire import Notes

    class Writer(Protocol):
        """A function that writes one note, named by its keyword."""

        def __call__(self, **facts: Unpack[Notes]) -> None: ...


# The function of the recorder, once there is one.
_writers: list[Writer] = []


def write_notes_by(function: Writer) -> None:
    """Has a recorder write all notes."""
    _writers.append(function)


def write_note(**facts: Unpack[Notes]) -> None:
    """Writes a note by the recorder, or without one where no framework is imported."""
    if _writers:
        _writers[-1](**facts)
    elif not SETTINGS.get("record"):
        write_to_standin(**facts)


def write_limitation(code: str, message: str, affects_figures: bool = False) -> None:
    """Writes a limitation of the verdict."""
    write_note(limitation={"code": code, "message": message, "affects_figures": affects_figures})


def write_to_standin(**facts: Unpack[Notes]) -> None:
    """Writes a note without a recorder, which may be absent."""
    import ctypes

    note = json.dumps(facts).encode()
    library = ctypes.CDLL(None)
    bind(library, "tonnage_record")
    library.tonnage_record(RECORD_NOTE, note, len(note))
