# SPDX-License-Identifier: MIT OR Apache-2.0
"""For the Trainer of Lightning.

trainer = Trainer(…, callbacks=[TonnageCallback("train.tonnage", steps=3)])
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from tonnage.integrations._training import TrainingCallback


class TonnageCallback(TrainingCallback, Callback):
    """Records the GPU memory of a training: of its first `steps` batches, or of all of it.

    If it runs out of memory, the recording is left and its explanation printed. Query `recording` further.
    """

    _output = "lightning.tonnage"

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._recorder.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._recorder.step_ended()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._recorder.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._recorder.end()
