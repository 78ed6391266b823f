# SPDX-License-Identifier: MIT OR Apache-2.0
"""A one-stage detector with a pyramid of features and dense boxes."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, ANCHORS = 80, 9


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (3, 64, 128, 256, 256)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.SiLU()) for a, b in pairwise(widths)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(w, 128, 1) for w in widths[3:])
        self.classes = nn.Conv2d(128, ANCHORS * CLASSES, 3, padding=1)
        self.boxes = nn.Conv2d(128, ANCHORS * 4, 3, padding=1)

    def forward(self, x):
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        top = self.lateral[1](levels[3])
        below = self.lateral[0](levels[2]) + F.interpolate(top, scale_factor=2.0)
        return [(self.classes(level), self.boxes(level)) for level in (below, top)]


def focal(logits, labels):
    p = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return ((labels - p).abs().square() * entropy).mean()


model = Detector().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(4):
    images = torch.rand(8, 3, 512, 512, device="cuda")
    loss = 0.0
    for scores, boxes in model(images):
        loss = loss + focal(scores, (torch.rand_like(scores) > 0.99).float())
        loss = loss + F.smooth_l1_loss(boxes, torch.randn_like(boxes))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
