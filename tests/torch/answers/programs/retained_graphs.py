# SPDX-License-Identifier: MIT OR Apache-2.0
"""Outputs and losses are kept, and backward keeps the graph: nothing of a step is ever freed."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
outputs, total = [], 0
for _ in range(60):
    output = model(torch.randn(2048, 2048, device="cuda"))
    loss = output.square().mean()
    if os.environ.get("FIXED"):
        # 1: without graphs; 2: and on the host.
        outputs.append(output.detach() if os.environ["FIXED"] == "1" else output.detach().cpu())
        total = total + loss.detach()
        loss.backward(retain_graph=True)
    else:
        outputs.append(output)  # <- here
        total = total + loss  # <- here
        loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
print("loss", float(total) / 60)
