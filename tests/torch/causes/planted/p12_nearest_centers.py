# SPDX-License-Identifier: MIT OR Apache-2.0
"""k-means on embeddings."""

import os

import torch

N, K, D = 32768, 1024, 64


def squared_distances(points, centers):
    if os.environ.get("FIXED"):
        cross = points @ centers.T
        return points.square().sum(1, keepdim=True).sub(cross, alpha=2) + centers.square().sum(1)
    return ((points[:, None] - centers[None]) ** 2).sum(-1)  # <- here


def assign(points, centers):
    return squared_distances(points, centers).argmin(dim=1)


def update(points, labels):
    sums = torch.zeros(K, D, device=points.device).index_add_(0, labels, points)
    counts = torch.zeros(K, device=points.device).index_add_(0, labels, torch.ones_like(labels, dtype=torch.float))
    return sums / counts.clamp(min=1)[:, None]


points = torch.randn(N, D, device="cuda")
centers = points[:K].clone()
for _ in range(4):
    centers = update(points, assign(points, centers))
