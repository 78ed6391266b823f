# SPDX-License-Identifier: MIT OR Apache-2.0
"""Matches two clouds of points with Sinkhorn's algorithm, and moves one towards the other."""

import math

import torch

N, D, EPSILON = 8192, 3, 0.05
target = torch.randn(N, D, device="cuda")
points = torch.randn(N, D, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([points], lr=0.05)


@torch.no_grad()
def plan(cost, rounds=5):
    f = torch.zeros(N, device=cost.device)
    g = torch.zeros(N, device=cost.device)
    weight = -math.log(N)
    for _ in range(rounds):
        f = -EPSILON * torch.logsumexp((g[None, :] - cost) / EPSILON + weight, dim=1)
        g = -EPSILON * torch.logsumexp((f[:, None] - cost) / EPSILON + weight, dim=0)
    return torch.exp((f[:, None] + g[None, :] - cost) / EPSILON + 2 * weight)


def transport_loss():
    cost = torch.cdist(points, target).square()
    return (plan(cost.detach()) * cost).sum()


for step in range(4):
    loss = transport_loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
