# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 6: training fits, evaluation runs out: it collects its outputs on the device."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(nn.Linear(64, 1024), nn.Sigmoid(), nn.Linear(1024, 16384))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.zeros(4096, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
outputs = []
model.eval()
with torch.no_grad():
    for _ in range(24):
        output = model(torch.zeros(8192, 64, device="cuda"))  # <- here
        outputs.append(output.cpu() if os.environ.get("FIXED") else output)
        del output
