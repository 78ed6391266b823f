# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two models are trained in turn: the passes of one lie between the forward and the backward pass of the other."""

import os

import torch
from torch import nn

with torch.device("cuda"):
    maker = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 65536))
    critic = nn.Sequential(nn.Linear(65536, 256), nn.LeakyReLU(), nn.Linear(256, 1))
makers, critics = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, critic))
samples = []
for _ in range(60):
    real = torch.randn(256, 65536, device="cuda")
    made = maker(torch.randn(256, 128, device="cuda"))
    loss = critic(made.detach()).mean() - critic(real).mean()
    critics.zero_grad()
    loss.backward()
    critics.step()
    makers.zero_grad()
    critic(made).mean().neg().backward()
    makers.step()
    samples.append(made.detach().cpu() if os.environ.get("FIXED") else made)  # <- here
