# SPDX-License-Identifier: MIT OR Apache-2.0
"""A normalizing flow of affine couplings, trained by maximum likelihood."""

import torch
from torch import nn

WIDTH, HIDDEN, BATCH = 512, 2048, 8192


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(WIDTH // 2, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        log_scale, shift = self.net(a).chunk(2, 1)
        log_scale = torch.tanh(log_scale)
        return torch.cat([b * log_scale.exp() + shift, a], 1), log_scale.sum(1)


flow = nn.ModuleList(Coupling(bool(i % 2)) for i in range(8)).cuda()
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-4)
for _ in range(4):
    z = torch.randn(BATCH, WIDTH, device="cuda")
    volume = torch.zeros(BATCH, device="cuda")
    for layer in flow:
        z, change = layer(z)
        volume = volume + change
    loss = (0.5 * z.square().sum(1) - volume).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
