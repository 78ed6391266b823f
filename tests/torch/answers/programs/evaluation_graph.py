# SPDX-License-Identifier: MIT OR Apache-2.0
"""Evaluation of a larger batch without no_grad: every layer keeps its input for a backward pass that never comes."""

import contextlib
import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(16)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    for _ in range(2):
        model(torch.randn(8192, 2048, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate():
    model.eval()
    batch = torch.randn(65536, 2048, device="cuda")
    with torch.no_grad() if os.environ.get("FIXED") else contextlib.nullcontext():
        return model(batch).mean()  # <- here


train()
evaluate()
