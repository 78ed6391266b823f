# SPDX-License-Identifier: MIT OR Apache-2.0
"""Lightning's Trainer: fit with validation, early stopping and a checkpoint."""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
        )

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        out = self.layers(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(out, batch[1]))
        self.log("accuracy", (out.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(512, 1024), torch.randint(0, 10, (512,)))
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EarlyStopping("val_loss", patience=3), ModelCheckpoint(folder, save_last=True)],
    )
    trainer.fit(Model(), DataLoader(data, 64), DataLoader(data, 64))
print(f"done, {trainer.current_epoch} epochs, {trainer.global_step} steps")
print(f"{torch.cuda.max_memory_allocated()} bytes at most")
