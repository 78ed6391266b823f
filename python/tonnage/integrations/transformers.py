# SPDX-License-Identifier: MIT OR Apache-2.0
"""For the Trainer of Hugging Face transformers.

trainer = Trainer(…, callbacks=[TonnageCallback("train.tonnage", steps=3)])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tonnage._recording import PathLike, Recording
from tonnage.integrations._training import TrainingRecorder


class TonnageCallback(TrainerCallback):
    """Records the GPU memory of a training: of its first `steps` steps, or of all of it.

    If it runs out of memory, the recording is left and its explanation printed when Python ends: the Trainer does not
    tell its callbacks of exceptions. `recording` is what to ask further.
    """

    def __init__(
        self,
        output: PathLike = "trainer.tonnage",
        *,
        steps: int | None = None,
        ring: int = 100_000,
        explain: bool = True,
    ) -> None:
        self._recorder = TrainingRecorder(output, steps=steps, ring=ring, explain=explain)

    @property
    def recording(self) -> Recording:
        """The recording, once it has ended."""
        return self._recorder.recording

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._recorder.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._recorder.step_ended()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._recorder.end()
