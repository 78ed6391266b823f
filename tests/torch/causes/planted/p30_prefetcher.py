# SPDX-License-Identifier: MIT OR Apache-2.0
"""Copies batches to the GPU ahead of their use."""

import os
from collections import deque

import torch
from torch import nn

DEPTH = 2 if os.environ.get("FIXED") else 12


def loader():
    host = torch.empty(64, 3, 512, 512)
    labels = torch.zeros(64, dtype=torch.long)
    while True:
        yield host, labels


class Prefetcher:
    def __init__(self, batches, depth):
        self.batches = iter(batches)
        self.queue = deque()
        for _ in range(depth):
            self.fetch()

    def fetch(self):
        images, labels = next(self.batches)
        self.queue.append((images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)))  # <- here

    def __iter__(self):
        while True:
            batch = self.queue.popleft()
            self.fetch()
            yield batch


model = nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (images, labels) in enumerate(Prefetcher(loader(), depth=DEPTH)):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5:
        break
