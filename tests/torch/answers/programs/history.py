# SPDX-License-Identifier: MIT OR Apache-2.0
"""A trainer remembers losses and errors of every step as they are: on the device, and with their graphs."""

import os

import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.history = {"loss": [], "error": []}

    def remember(self, name, value):
        self.history[name].append(value.detach().cpu() if os.environ.get("FIXED") else value)  # <- here

    def step(self, x, y):
        out = self.model(x)
        loss = nn.functional.mse_loss(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.remember("loss", loss)
        self.remember("error", (out - y).abs())


trainer = Trainer()
for _ in range(60):
    trainer.step(*(torch.randn(8192, 1024, device="cuda") for _ in range(2)))
