# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small student learns from the soft labels of a large teacher."""

import torch
import torch.nn.functional as F
from torch import nn


def perceptron(width, depth):
    layers = [nn.Linear(1024, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 1000)).cuda()


teacher = perceptron(8192, 3).eval().requires_grad_(False)
student = perceptron(2048, 2)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
TEMPERATURE = 4.0

for _ in range(5):
    x = torch.randn(4096, 1024, device="cuda")
    y = torch.randint(1000, (4096,), device="cuda")
    with torch.no_grad():
        soft = F.softmax(teacher(x) / TEMPERATURE, dim=1)
    logits = student(x)
    distance = F.kl_div(F.log_softmax(logits / TEMPERATURE, dim=1), soft, reduction="batchmean")
    loss = 0.9 * TEMPERATURE**2 * distance + 0.1 * F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
