# SPDX-License-Identifier: MIT OR Apache-2.0
"""A graph network with messages along edges, for all nodes of one graph."""

import torch
import torch.nn.functional as F
from torch import nn

NODES, EDGES, WIDTH, CLASSES = 50_000, 400_000, 128, 40


class Convolution(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.own = nn.Linear(inside, outside)
        self.neighbor = nn.Linear(inside, outside, bias=False)

    def forward(self, x, source, target, degree):
        messages = self.neighbor(x)[source]
        gathered = torch.zeros(x.shape[0], messages.shape[1], device=x.device).index_add(0, target, messages)
        return self.own(x) + gathered / degree[:, None]


first, second = Convolution(WIDTH, 256).cuda(), Convolution(256, CLASSES).cuda()
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
features = torch.randn(NODES, WIDTH, device="cuda")
labels = torch.randint(CLASSES, (NODES,), device="cuda")
source, target = torch.randint(NODES, (2, EDGES), device="cuda")
degree = torch.zeros(NODES, device="cuda").index_add_(0, target, torch.ones(EDGES, device="cuda")).clamp_(min=1)

for epoch in range(5):
    hidden = F.dropout(F.relu(first(features, source, target, degree)), 0.5)
    loss = F.cross_entropy(second(hidden, source, target, degree), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
