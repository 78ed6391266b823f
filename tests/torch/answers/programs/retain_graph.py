# SPDX-License-Identifier: MIT OR Apache-2.0
"""backward(retain_graph=True) keeps a step's graph until the name `loss` gets the next one: two steps at once."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(16)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = model(torch.randn(16384, 2048, device="cuda")).pow(2).mean()  # <- here
    loss.backward(retain_graph=not os.environ.get("FIXED"))  # <- here
    optimizer.step()
    optimizer.zero_grad()
