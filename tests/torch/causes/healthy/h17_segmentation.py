# SPDX-License-Identifier: MIT OR Apache-2.0
"""U-Net for segmentation of medical images, with a validation after training."""

import torch
import torch.nn.functional as F
from torch import nn


def double(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.InstanceNorm2d(outside), nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1), nn.InstanceNorm2d(outside), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128)):
        super().__init__()
        self.downs = nn.ModuleList(double(a, b) for a, b in zip((1, *widths), widths))
        self.bottom = double(widths[-1], 256)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.merges = nn.ModuleList(double(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.ups, self.merges):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


model = UNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    scans = torch.randn(8, 1, 256, 256, device="cuda")
    masks = torch.randint(4, (8, 256, 256), device="cuda")
    loss = F.cross_entropy(model(scans), masks)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()

model.eval()
with torch.no_grad():
    print(model(torch.randn(8, 1, 256, 256, device="cuda")).argmax(1).shape)
