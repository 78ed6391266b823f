# SPDX-License-Identifier: MIT OR Apache-2.0
"""A generator of images against a discriminator."""

import torch
import torch.nn.functional as F
from torch import nn


def generator(latent=128, width=64):
    return nn.Sequential(
        nn.ConvTranspose2d(latent, width * 8, 4), nn.BatchNorm2d(width * 8), nn.ReLU(True),
        nn.ConvTranspose2d(width * 8, width * 4, 4, 2, 1), nn.BatchNorm2d(width * 4), nn.ReLU(True),
        nn.ConvTranspose2d(width * 4, width * 2, 4, 2, 1), nn.BatchNorm2d(width * 2), nn.ReLU(True),
        nn.ConvTranspose2d(width * 2, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(True),
        nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def discriminator(width=64):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, width * 2, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width * 2, width * 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width * 4, 1, 8),
    )  # fmt: skip


G, D = generator().cuda(), discriminator().cuda()
adam_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
adam_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
for i in range(4):
    real = torch.rand(256, 3, 64, 64, device="cuda") * 2 - 1
    fake = G(torch.randn(256, 128, 1, 1, device="cuda"))
    adam_d.zero_grad()
    loss_d = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
    loss_d.backward()
    adam_d.step()
    adam_g.zero_grad()
    F.softplus(-D(fake)).mean().backward()
    adam_g.step()
