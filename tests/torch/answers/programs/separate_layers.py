# SPDX-License-Identifier: MIT OR Apache-2.0
"""Layers made one by one, with no module around them: their weights alone are more than the GPU."""

import torch
from torch import nn

layers = []
for _ in range(48):
    layers.append(nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16, device="cuda"))  # <- here
x = torch.zeros(16, 8192, dtype=torch.bfloat16, device="cuda")
with torch.no_grad():
    for layer in layers:
        x = layer(x)
