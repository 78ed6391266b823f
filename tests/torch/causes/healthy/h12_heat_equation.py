# SPDX-License-Identifier: MIT OR Apache-2.0
"""A network that satisfies the heat equation: its derivatives are part of the loss."""

import torch
from torch import nn

POINTS, WIDTH = 65536, 256
net = nn.Sequential(
    nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
    nn.Linear(WIDTH, 1),
).cuda()  # fmt: skip
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


for epoch in range(4):
    x = torch.rand(POINTS, 1, device="cuda", requires_grad=True)
    t = torch.rand(POINTS, 1, device="cuda", requires_grad=True)
    u = net(torch.cat([x, t], 1))
    residual = derivative(u, t) - 0.1 * derivative(derivative(u, x), x)
    edge = net(torch.cat([torch.rand(4096, 1, device="cuda"), torch.zeros(4096, 1, device="cuda")], 1))
    loss = residual.square().mean() + edge.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
