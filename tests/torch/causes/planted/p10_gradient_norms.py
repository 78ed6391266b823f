# SPDX-License-Identifier: MIT OR Apache-2.0
"""Records the norm of the gradient before each step."""

import os

import torch
import torch.nn.functional as F
from torch import nn

FIXED = os.environ.get("FIXED") == "1"
B, D, H = 8192, 1024, 4096
net = nn.Sequential(nn.Linear(D, H, bias=False), nn.ReLU(), nn.Linear(H, D, bias=False)).to("cuda")
sgd = torch.optim.SGD(net.parameters(), lr=0.05)
norms = []


def gradient_norm(loss):
    grads = torch.autograd.grad(
        loss,
        list(net.parameters()),
        retain_graph=True,
        create_graph=not FIXED,  # <- here
    )
    return torch.stack([g.norm() for g in grads]).norm()


def train_step():
    x = torch.randn(B, D, device="cuda")
    loss = F.mse_loss(net(x), x.roll(1, 0))
    norms.append(gradient_norm(loss))  # <- here
    sgd.zero_grad()
    loss.backward()
    sgd.step()


for _ in range(5):
    train_step()
print("norms of", len(norms), "steps")
