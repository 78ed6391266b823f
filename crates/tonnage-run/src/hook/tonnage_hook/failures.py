# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counts the exceptions of the hook that do not reach the script.

An error of the hook must not end the job, so its functions catch every exception. Each such place calls `swallow`,
which counts by function and keeps the type and message of the first error. The verdict shows the counts. A place that
catches an expected exception names its type instead.
"""

from __future__ import annotations

import functools

from tonnage_hook.notes import write_note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tonnage_hook.notes import Writer

# Characters of a message that are kept.
_MESSAGE = 512


class Failures:
    """The failures of this process. `note` writes a note to the log."""

    def __init__(self, note: Writer) -> None:
        self.note = note
        self.counts: dict[str, int] = {}
        self.first: dict[str, tuple[str, str]] = {}
        # The count of each function that was written last.
        self.written: dict[str, int] = {}

    def swallow(self, function: str, error: BaseException) -> None:
        """Counts an exception of a function, and keeps only its text: the exception refers to frames, and those to
        tensors of the script."""
        count = self.counts[function] = self.counts.get(function, 0) + 1
        if count == 1:
            self.first[function] = _describe(error)
        # A process that is killed writes nothing at its end.
        if count & (count - 1) == 0:
            self._write(function)

    def harmless(self, default: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A method that returns a default where it fails."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            name = function.__qualname__

            @functools.wraps(function)
            def careful(this: Any, *arguments: Any) -> Any:
                try:
                    return function(this, *arguments)
                except Exception as error:
                    self.swallow(name, error)
                    return default

            return careful

        return decorate

    def write(self) -> None:
        """Writes the counts that changed since they were written last."""
        for function, count in list(self.counts.items()):
            if self.written.get(function) != count:
                self._write(function)

    def begin_anew(self, keep: bool) -> None:
        """A fork goes on with its own counts. A variant keeps those of its fork server, which has no log."""
        self.written.clear()
        if not keep:
            self.counts.clear()
            self.first.clear()

    def _write(self, function: str) -> None:
        count = self.written[function] = self.counts[function]
        error, message = self.first[function]
        try:
            self.note(failure={"function": function, "count": count, "error": error, "message": message})
        except Exception:
            # The log is the only place to write to. The next count is written again.
            self.written.pop(function, None)


def _describe(error: BaseException) -> tuple[str, str]:
    try:
        message = str(error)
    except Exception as another:
        message = f"its message cannot be made: {type(another).__name__}"
    return type(error).__name__, message[:_MESSAGE]


failures = Failures(write_note)
swallow, harmless = failures.swallow, failures.harmless
