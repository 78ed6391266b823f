# SPDX-License-Identifier: MIT OR Apache-2.0
"""An ordinary training job on a GPU that is much larger than it needs."""

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(1024, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
