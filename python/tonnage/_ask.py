# SPDX-License-Identifier: MIT OR Apache-2.0
"""Asks the command, in this process and without printing."""

from __future__ import annotations

import json
import os
from types import ModuleType
from typing import Any

from tonnage import _tonnage


class Error(Exception):
    """Why a question could not be answered; `hint` is the next step."""

    #: As users import it, in tracebacks too.
    __module__ = "tonnage"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def _render_traceback_(self) -> list[str]:
        """The traceback in a notebook: the message alone, because nothing in tonnage's own code is to blame."""
        return [f"error: {self}"]


Reply = tuple[int, dict[str, Any], str]


def ask(*words: str | os.PathLike[str]) -> Reply:
    """The exit code, the JSON and the text of `tonnage WORDS`."""
    reply = _tonnage.ask(["tonnage", *(os.fspath(word) for word in words)])
    if len(reply) == 2:
        raise Error(*reply)
    code, data, text = reply
    return code, json.loads(data) if data else {}, text or ""


def pyarrow() -> ModuleType:
    """pyarrow, which only tables need; without it, how to get it."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ImportError("to_arrow() needs pyarrow: pip install 'tonnage[arrow]'") from error
    return pyarrow


def flags(**options: object) -> list[str]:
    """Options as one would type them: `capacity="24GiB"` is `--capacity=24GiB`; none and false are left out."""
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            words.extend(f"{flag}={one}" for one in value)
        elif value is not None and value is not False:
            words.append(f"{flag}={value}")
    return words
