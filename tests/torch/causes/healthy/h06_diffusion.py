# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a small denoising diffusion model, then samples from it."""

import math

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 1000


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width * 4), nn.SiLU(), nn.Linear(width * 4, width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, width * 2, 4, 2, 1)
        self.middle = nn.Sequential(
            nn.GroupNorm(8, width * 2), nn.SiLU(), nn.Conv2d(width * 2, width * 2, 3, padding=1)
        )
        self.up = nn.ConvTranspose2d(width * 2, width, 4, 2, 1)
        self.leave = nn.Conv2d(width * 2, 3, 3, padding=1)
        self.width = width

    def forward(self, x, t):
        frequencies = torch.exp(-math.log(10000) * torch.arange(self.width // 2, device=x.device) / (self.width // 2))
        angles = t[:, None] * frequencies
        entry = self.enter(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        middle = self.down(F.silu(entry))
        middle = middle + self.middle(middle)
        return self.leave(torch.cat([entry, self.up(middle)], 1))


betas = torch.linspace(1e-4, 0.02, STEPS, device="cuda")
alphas = (1 - betas).cumprod(0)
model = Denoiser().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for _ in range(4):
    images = torch.rand(32, 3, 128, 128, device="cuda") * 2 - 1
    t = torch.randint(0, STEPS, (32,), device="cuda")
    noise = torch.randn_like(images)
    share = alphas[t][:, None, None, None]
    noisy = share.sqrt() * images + (1 - share).sqrt() * noise
    loss = F.mse_loss(model(noisy, t.float()), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    x = torch.randn(8, 3, 128, 128, device="cuda")
    for t in reversed(range(0, STEPS, 200)):
        predicted = model(x, torch.full((8,), float(t), device="cuda"))
        x = (x - betas[t] / (1 - alphas[t]).sqrt() * predicted) / (1 - betas[t]).sqrt()
print(x.shape)
