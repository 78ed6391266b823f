# SPDX-License-Identifier: MIT OR Apache-2.0
"""Learns an initialization: the outer loss is differentiated through two inner steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

TASKS, SHOTS, INNER = 4, 256, 2
model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 5)).cuda()
meta = torch.optim.Adam(model.parameters(), lr=1e-3)


def task():
    x = torch.randn(2, SHOTS, 784, device="cuda")
    return x, torch.randint(5, (2, SHOTS), device="cuda")


def adapt(x, y):
    weights = dict(model.named_parameters())
    for _ in range(INNER):
        loss = F.cross_entropy(functional_call(model, weights, (x,)), y)
        grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: w - 0.05 * g for (name, w), g in zip(weights.items(), grads)}
    return weights


for iteration in range(3):
    meta.zero_grad()
    for _ in range(TASKS):
        x, y = task()
        outer = F.cross_entropy(functional_call(model, adapt(x[0], y[0]), (x[1],)), y[1])
        (outer / TASKS).backward()
        del outer
    meta.step()
