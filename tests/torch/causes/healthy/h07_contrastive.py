# SPDX-License-Identifier: MIT OR Apache-2.0
"""Contrastive learning of images: two views of each, all other images are negatives."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 1024


def augment(images):
    shifted = torch.roll(images, shifts=(3, -5), dims=(2, 3))
    return (shifted + 0.1 * torch.randn_like(images)).clamp(0, 1)


encoder = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 128, 3, 2, 1), nn.BatchNorm2d(128),
    nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(512, 256),
).cuda()  # fmt: skip
projector = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], lr=1e-3)
itself = torch.eye(2 * BATCH, dtype=torch.bool, device="cuda")
partner = torch.arange(2 * BATCH, device="cuda").roll(BATCH)


def contrastive_loss(z):
    similarity = (z @ z.T / 0.1).masked_fill(itself, float("-inf"))
    return F.cross_entropy(similarity, partner)


for step in range(4):
    images = torch.rand(BATCH, 3, 64, 64, device="cuda")
    views = torch.cat([augment(images), augment(images)])
    z = F.normalize(projector(encoder(views)), dim=1)
    loss = contrastive_loss(z)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
