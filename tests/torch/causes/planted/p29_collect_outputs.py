# SPDX-License-Identifier: MIT OR Apache-2.0
"""A product classifier in Lightning with a callback for a confusion matrix."""

import os
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
CLASSES, BATCH = 32000, 4096


class Products(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU())
        self.head = nn.Linear(256, CLASSES)

    def training_step(self, batch, index):
        features, labels = batch
        logits = self.head(self.body(features))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits.detach()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Confusion(L.Callback):
    def __init__(self):
        self.predictions = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        logits = outputs["logits"]
        self.predictions.append(logits.argmax(1) if os.environ.get("FIXED") else logits)  # <- here


data = TensorDataset(torch.randn(6 * BATCH, 64), torch.randint(CLASSES, (6 * BATCH,)))
trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Confusion()],
)  # fmt: skip
trainer.fit(Products(), DataLoader(data, batch_size=BATCH))
