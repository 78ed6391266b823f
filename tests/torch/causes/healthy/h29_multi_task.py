# SPDX-License-Identifier: MIT OR Apache-2.0
"""Depth, normals and classes of pixels from one encoder, in Lightning with torchmetrics."""

import warnings

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Scene(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.GELU(), nn.Conv2d(64, 128, 3, padding=1), nn.GELU()
        )
        self.heads = nn.ModuleDict({"depth": nn.Conv2d(128, 1, 1), "normal": nn.Conv2d(128, 3, 1)})
        self.classes = nn.Conv2d(128, 13, 1)
        self.log_variance = nn.Parameter(torch.zeros(3))
        self.error = torchmetrics.MeanSquaredError()

    def training_step(self, batch, index):
        images, depth = batch
        features = self.encoder(images)
        estimate = self.heads["depth"](features)
        normals = nn.functional.normalize(self.heads["normal"](features), dim=1)
        classes = self.classes(features)
        self.error.update(estimate.detach(), depth)
        losses = torch.stack(
            [
                (estimate - depth).abs().mean(),
                1 - normals[:, 2].mean(),
                nn.functional.cross_entropy(classes, (depth[:, 0] > 0.5).long()),
            ]
        )
        return (losses * (-self.log_variance).exp() + self.log_variance).sum()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(torch.rand(32, 3, 128, 128), torch.rand(32, 1, 128, 128))
trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Scene(), DataLoader(data, batch_size=8))
