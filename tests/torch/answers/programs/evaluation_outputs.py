# SPDX-License-Identifier: MIT OR Apache-2.0
"""Predictions of several lengths are collected on the device while a model is evaluated."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 8192))


@torch.no_grad()
def predict(loader):
    predictions = []
    for length in loader:
        output = model(torch.zeros(length, 256, device="cuda"))
        predictions.append(output.cpu() if os.environ.get("FIXED") else output)  # <- here
    return predictions


model.eval()
predict([4096 + 512 * (number % 7) for number in range(60)])
