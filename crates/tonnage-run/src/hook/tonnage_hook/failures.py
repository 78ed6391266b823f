# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counts the exceptions of the hook that do not reach the script.

An error of the hook must not end the job, so its functions catch every exception. Each such place calls `swallow`,
which counts by function and keeps the type and message of the first error. The verdict shows the counts. A place that
catches an expected exception names its type instead.
"""

import functools

from tonnage_hook.notes import write_note

# Characters of a message that are kept.
_MESSAGE = 512


class Failures:
    """The failures of this process. `note` writes a note to the log."""

    def __init__(self, note):
        self.note = note
        self.counts = {}
        self.first = {}
        # The count of each function that was written last.
        self.written = {}

    def swallow(self, function, error):
        """Counts an exception of a function, and keeps only its text: the exception refers to frames, and those to
        tensors of the script."""
        count = self.counts[function] = self.counts.get(function, 0) + 1
        if count == 1:
            self.first[function] = _describe(error)
        # A process that is killed writes nothing at its end.
        if count & (count - 1) == 0:
            self._write(function)

    def harmless(self, default):
        """A method that returns a default where it fails."""

        def decorate(function):
            name = function.__qualname__

            @functools.wraps(function)
            def careful(this, *arguments):
                try:
                    return function(this, *arguments)
                except Exception as error:
                    self.swallow(name, error)
                    return default

            return careful

        return decorate

    def write(self):
        """Writes the counts that changed since they were written last."""
        for function, count in list(self.counts.items()):
            if self.written.get(function) != count:
                self._write(function)

    def begin_anew(self, keep):
        """A fork goes on with counts of its own. A variant keeps those of its fork server, which has no log."""
        self.written.clear()
        if not keep:
            self.counts.clear()
            self.first.clear()

    def _write(self, function):
        count = self.written[function] = self.counts[function]
        error, message = self.first[function]
        try:
            self.note(failure={"function": function, "count": count, "error": error, "message": message})
        except Exception:
            # The log is the only place to write to. The next count is written again.
            self.written.pop(function, None)


def _describe(error):
    try:
        message = str(error)
    except Exception as another:
        message = f"its message cannot be made: {type(another).__name__}"
    return type(error).__name__, message[:_MESSAGE]


failures = Failures(write_note)
swallow, harmless = failures.swallow, failures.harmless
