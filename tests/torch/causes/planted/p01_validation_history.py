# SPDX-License-Identifier: MIT OR Apache-2.0
"""An image classifier with a validation pass after each epoch."""

import os
from collections import defaultdict

import torch
from torch import nn

FIXED = os.environ.get("FIXED") == "1"
device = torch.device("cuda")

net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.ReLU(inplace=True),
    nn.Conv2d(64, 64, 3, padding=1),
    nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def batch_loss(size):
    images = torch.rand(size, 3, 128, 128, device=device)
    labels = torch.randint(0, 10, (size,), device=device)
    return criterion(net(images), labels)


history = defaultdict(list)
for _ in range(2):
    net.train()
    optimizer.zero_grad()
    batch_loss(16).backward()
    optimizer.step()

net.eval()
for _ in range(5):
    loss = batch_loss(64) if not FIXED else batch_loss(64).detach()
    history["val_loss"].append(loss)  # <- here
    del loss
print(torch.stack(history["val_loss"]).shape)
