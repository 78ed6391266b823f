# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the callbacks of all trainers share: one recording from the first step to the last that is wanted."""

from __future__ import annotations

import atexit
import warnings
from pathlib import Path
from typing import ClassVar

from tonnage._ask import Error
from tonnage._record import Recorded, print_explanation, record
from tonnage._recording import PathLike, Recording


class TrainingRecorder:
    """Begins and ends a recording when a trainer signals it, and at the latest when Python ends."""

    def __init__(self, output: PathLike, *, steps: int | None, ring: int, explain: bool) -> None:
        self.output = Path(output)
        self._steps = steps
        self._ring = ring
        self._explain = explain
        self._running: record | None = None
        self._recorded: Recorded | None = None
        self._done = 0

    @property
    def recording(self) -> Recording:
        """The recording, once it has ended."""
        if self._recorded is None or self._running is not None:
            raise Error("there is no recording yet", "train first; it ends with the training or after `steps` steps")
        return self._recorded.recording

    def begin(self) -> None:
        # A trainer that begins anew, as after an out-of-memory with another batch size, overwrites what was there.
        self.end()
        self._done = 0
        running = record(self.output, ring=self._ring, explain=False)
        try:
            self._recorded = running.__enter__()
        except Error as error:
            # Training goes on, as it would without this callback.
            warnings.warn(f"tonnage records nothing: {error.message}", stacklevel=3)
            return
        self._running = running
        atexit.register(self.end)

    def step_ended(self) -> None:
        self._done += 1
        if self._steps is not None and self._done >= self._steps:
            self.end()

    def end(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        atexit.unregister(self.end)
        running.__exit__(None, None, None)
        # Not every trainer reports exceptions; the allocator always knows.
        if self._explain and self._recorded is not None and self._recorded.out_of_memory:
            print_explanation(self._recorded)


class TrainingCallback:
    """The common part of the callback of every trainer."""

    #: Where the recording goes, by default.
    _output: ClassVar[str]

    def __init__(
        self,
        output: PathLike | None = None,
        *,
        steps: int | None = None,
        ring: int = 100_000,
        explain: bool = True,
    ) -> None:
        output = self._output if output is None else output
        self._recorder = TrainingRecorder(output, steps=steps, ring=ring, explain=explain)

    @property
    def recording(self) -> Recording:
        """The recording, once it has ended."""
        return self._recorder.recording
