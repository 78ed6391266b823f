# SPDX-License-Identifier: MIT OR Apache-2.0
"""Looks for the best width of a network."""

import os

import torch
import torch.nn.functional as F
from torch import nn


def trial(width):
    model = nn.Sequential(nn.Linear(1024, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1000))
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        x = torch.randn(256, 1024, device="cuda")
        y = torch.randint(1000, (256,), device="cuda")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    result = {"width": width, "loss": loss.detach()}
    if not os.environ.get("FIXED"):
        result |= {"model": model, "optimizer": optimizer}  # <- here
    return result


results = []
for width in (4096, 5120, 6144, 8192):
    results.append(trial(width))  # <- here
print(sorted(result["width"] for result in results))
