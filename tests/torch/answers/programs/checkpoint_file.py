# SPDX-License-Identifier: MIT OR Apache-2.0
"""A checkpoint is read to the device, beside the model it is for."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(6)])
torch.save(model.state_dict(), "model.pt")
where = "cpu" if os.environ.get("FIXED") else None
state = torch.load("model.pt", map_location=where)  # <- here
model.load_state_dict(state)
del state
with torch.no_grad():
    model(torch.zeros(16, 2048, device="cuda"))
