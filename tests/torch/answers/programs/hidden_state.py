# SPDX-License-Identifier: MIT OR Apache-2.0
"""A recurrent cell hands its state to the next step, and with it the graph of all steps before."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    cell = nn.GRUCell(2048, 2048)
    state = torch.zeros(8192, 2048)
for _ in range(40):
    batch = torch.randn(8192, 2048, device="cuda")
    state = cell(batch, state.detach() if os.environ.get("FIXED") else state)  # <- here
    loss = state.mean()
