# SPDX-License-Identifier: MIT OR Apache-2.0
"""A text encoder with an optional moving average of its weights."""

import copy
import os
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    width: int = 1024
    layers: int = 16
    use_ema: bool = False
    decay: float = 0.999


class Trainer:
    def __init__(self, settings):
        self.settings = settings
        layer = nn.TransformerEncoderLayer(settings.width, 16, 4 * settings.width, dropout=0.0, batch_first=True)
        self.model = nn.TransformerEncoder(layer, settings.layers, enable_nested_tensor=False).cuda()
        self.ema = None
        if settings.use_ema or not os.environ.get("FIXED"):
            self.ema = copy.deepcopy(self.model).requires_grad_(False)  # <- here
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def update_ema(self):
        for average, weight in zip(self.ema.parameters(), self.model.parameters()):
            average.lerp_(weight, 1 - self.settings.decay)

    def step(self):
        x = torch.randn(8, 128, self.settings.width, device="cuda")
        (self.model(x) - x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.settings.use_ema:
            self.update_ema()


trainer = Trainer(Settings())
for _ in range(4):
    trainer.step()
