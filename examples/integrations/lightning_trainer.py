# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lightning: its Trainer with a callback that records the first batches.

On a machine without a GPU, try it as `tonnage run --gpu a100-40gb -- python lightning_trainer.py`.
"""

import lightning
import torch
from tonnage.integrations.lightning import TonnageCallback
from torch import nn


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))

    def training_step(self, batch):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


callback = TonnageCallback("lightning.tonnage", steps=3)
trainer = lightning.Trainer(
    max_steps=5,
    accelerator="gpu",
    devices=1,
    callbacks=[callback],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(64, 1024), batch_size=8))

print(callback.recording.explain())
