# SPDX-License-Identifier: MIT OR Apache-2.0
"""A forward hook keeps what a layer put out, in a dictionary of lists that is never emptied."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
features = {"hidden": []}


def remember(module, inputs, output):
    kept = output.detach()
    features["hidden"].append(kept.mean(0).cpu() if os.environ.get("FIXED") else kept)  # <- here


model[1].register_forward_hook(remember)
for _ in range(40):
    model(torch.randn(8192, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
