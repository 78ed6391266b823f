# SPDX-License-Identifier: MIT OR Apache-2.0
"""A variational autoencoder of images."""

import torch
import torch.nn.functional as F
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, latent=128):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(64 * 32 * 32, 2 * latent),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(latent, 64 * 32 * 32), nn.Unflatten(1, (64, 32, 32)), nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


model = Autoencoder().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
totals = []
for _ in range(5):
    images = torch.rand(128, 3, 128, 128, device="cuda")
    output, mean, log_variance = model(images)
    distance = F.binary_cross_entropy_with_logits(output, images, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    loss = (distance + divergence) / len(images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    totals.append(loss.detach())
print(torch.stack(totals).shape)
