# SPDX-License-Identifier: MIT OR Apache-2.0
"""The best state is kept as a clone, on the device: weights and both states of Adam a second time."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(24)])  # 1.5 GiB
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def copy_of(tensor):
    return tensor.cpu() if os.environ.get("FIXED") else tensor.clone()  # <- here


def state():
    weights = {name: copy_of(value) for name, value in model.state_dict().items()}
    moments = {
        number: {name: copy_of(value) for name, value in state.items()}
        for number, state in optimizer.state_dict()["state"].items()
    }
    return weights, moments


for _ in range(3):
    model(torch.randn(64, 4096, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
best = state()
