# SPDX-License-Identifier: MIT OR Apache-2.0
"""A transformer encoder whose last layer is looked at through a forward hook."""

import os

import torch
from torch import nn

FIXED = os.environ.get("FIXED") == "1"
B, T, D = 64, 512, 1024

with torch.device("cuda"):
    layer = nn.TransformerEncoderLayer(D, 16, dim_feedforward=2048, dropout=0.0, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    head = nn.Linear(D, 2)

captured = []


def capture(module, args, output):
    if FIXED:
        captured.clear()
    captured.append(output.detach())  # <- here


encoder.layers[-1].register_forward_hook(capture)
params = [*encoder.parameters(), *head.parameters()]
opt = torch.optim.SGD(params, lr=1e-3)

for step in range(6):
    opt.zero_grad(set_to_none=True)
    x = torch.randn(B, T, D, device="cuda")
    y = torch.randint(0, 2, (B,), device="cuda")
    loss = nn.functional.cross_entropy(head(encoder(x).mean(1)), y)
    loss.backward()
    opt.step()
    print(step, captured[-1].shape)
    del x, loss
