# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lightning keeps the best checkpoints and the last one."""

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch).mean()
        self.log("step_number", float(self.global_step))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


loader = torch.utils.data.DataLoader(torch.zeros(8, 8), batch_size=2)
keep = ModelCheckpoint(dirpath="lightning", monitor="step_number", mode="max", save_top_k=1, save_last=True)
output, sys.stdout = sys.stdout, open(os.devnull, "w")
trainer = lightning.Trainer(
    max_epochs=3, callbacks=[keep], logger=False, enable_progress_bar=False, enable_model_summary=False
)
trainer.fit(Model(), loader)
sys.stdout = output
print("lightning", sorted(os.listdir("lightning")), os.path.basename(keep.best_model_path))
print("loaded", Model.load_from_checkpoint(keep.best_model_path).layer.weight.shape)
