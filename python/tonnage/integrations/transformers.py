# SPDX-License-Identifier: MIT OR Apache-2.0
"""For the Trainer of Hugging Face transformers.

trainer = Trainer(…, callbacks=[TonnageCallback("train.tonnage", steps=3)])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tonnage.integrations._training import TrainingCallback


class TonnageCallback(TrainingCallback, TrainerCallback):
    """Records the GPU memory of a training: of its first `steps` steps, or of all of it.

    If it runs out of memory, the recording is left and its explanation printed when Python ends: the Trainer does not
    report exceptions to its callbacks. Query `recording` further.
    """

    _output = "trainer.tonnage"

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._recorder.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._recorder.step_ended()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._recorder.end()
