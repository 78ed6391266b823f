# SPDX-License-Identifier: MIT OR Apache-2.0
"""Dice score of a segmentation network on validation images."""

import os

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 32


def count(classes, weights):
    return torch.zeros(CLASSES, device="cuda").index_add_(0, classes.flatten(), weights.flatten())


def dice(logits, labels):
    predicted = logits.argmax(1)
    if os.environ.get("FIXED"):
        hits = count(labels, (predicted == labels).float())
        ones = torch.ones_like(labels, dtype=torch.float)
        return 2 * hits / (count(predicted, ones) + count(labels, ones))
    p = F.one_hot(predicted, CLASSES)  # <- here
    t = F.one_hot(labels, CLASSES)  # <- here
    return 2 * (p * t).sum((0, 1, 2)) / (p.sum((0, 1, 2)) + t.sum((0, 1, 2)))  # <- here


network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, CLASSES, 1)).cuda().eval()


@torch.no_grad()
def validate(batches):
    total = torch.zeros(CLASSES, device="cuda")
    for _ in range(batches):
        images = torch.rand(16, 3, 512, 512, device="cuda")
        labels = torch.randint(0, CLASSES, (16, 512, 512), device="cuda")
        total += dice(network(images), labels)
    return total / batches


print(validate(4).shape)
