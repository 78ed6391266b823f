# SPDX-License-Identifier: MIT OR Apache-2.0
"""Separates two speakers with dilated convolutions on spectrograms."""

import torch
from torch import nn

FFT, HOP = 512, 128


class Separator(nn.Module):
    def __init__(self, channels=256, layers=6):
        super().__init__()
        bins = FFT // 2 + 1
        self.entry = nn.Conv1d(bins, channels, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(channels, channels, 3, padding=2**i, dilation=2**i, groups=channels),
                nn.PReLU(),
                nn.GroupNorm(1, channels),
                nn.Conv1d(channels, channels, 1),
            )
            for i in range(layers)
        )
        self.masks = nn.Conv1d(channels, 2 * bins, 1)

    def forward(self, magnitude):
        x = self.entry(magnitude)
        for block in self.blocks:
            x = x + block(x)
        return torch.sigmoid(self.masks(x)).unflatten(1, (2, -1))


window = torch.hann_window(FFT, device="cuda")
model = Separator().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def spectrum(wave):
    return torch.stft(wave, FFT, HOP, window=window, return_complex=True).abs()


for _ in range(4):
    sources = torch.randn(2, 16, 64000, device="cuda")
    truth = torch.stack([spectrum(source) for source in sources], 1)
    mixture = spectrum(sources.sum(0))
    estimate = model(mixture) * mixture[:, None]
    straight = (estimate - truth).abs().mean((1, 2, 3))
    crossed = (estimate.flip(1) - truth).abs().mean((1, 2, 3))
    loss = torch.minimum(straight, crossed).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
