# SPDX-License-Identifier: MIT OR Apache-2.0
"""A trunk with two heads; each loss has its own backward pass."""

import os

import torch
from torch import nn

FIXED = os.environ.get("FIXED") == "1"
ROWS, WIDTH, DEPTH = 8192, 2048, 4
layers = [m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
trunk = nn.Sequential(*layers).cuda()
main_head, extra_head = nn.Linear(WIDTH, 10).cuda(), nn.Linear(WIDTH, 3).cuda()
optimizer = torch.optim.SGD([*trunk.parameters(), *main_head.parameters(), *extra_head.parameters()], lr=0.01)
log = []


def train_step():
    x = torch.randn(ROWS, WIDTH, device="cuda")
    features = trunk(x)
    main = nn.functional.cross_entropy(main_head(features), torch.randint(10, (ROWS,), device="cuda"))
    extra = nn.functional.cross_entropy(extra_head(features), torch.randint(3, (ROWS,), device="cuda"))
    optimizer.zero_grad()
    main.backward(retain_graph=True)
    extra.backward(retain_graph=not FIXED)  # <- here
    optimizer.step()
    if FIXED:
        main, extra = main.detach(), extra.detach()
    log.append({"main": main, "extra": extra})  # <- here


for _ in range(5):
    train_step()
print(len(log))
