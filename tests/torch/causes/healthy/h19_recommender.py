# SPDX-License-Identifier: MIT OR Apache-2.0
"""Recommends items to users from embeddings, with sparse gradients and sampled negatives."""

import torch
import torch.nn.functional as F
from torch import nn

USERS, ITEMS, WIDTH, BATCH, NEGATIVES = 1_000_000, 500_000, 128, 8192, 50
users = nn.Embedding(USERS, WIDTH, sparse=True, device="cuda")
items = nn.Embedding(ITEMS, WIDTH, sparse=True, device="cuda")
tower = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, WIDTH)).cuda()
sparse = torch.optim.SGD([*users.parameters(), *items.parameters()], lr=0.1)
dense = torch.optim.Adam(tower.parameters())

for _ in range(5):
    who = torch.randint(USERS, (BATCH,), device="cuda")
    bought = torch.randint(ITEMS, (BATCH,), device="cuda")
    others = torch.randint(ITEMS, (BATCH, NEGATIVES), device="cuda")
    taste = tower(users(who))
    positive = (taste * items(bought)).sum(1)
    negative = torch.einsum("bd,bnd->bn", taste, items(others))
    loss = F.softplus(-positive).mean() + F.softplus(negative).mean()
    for optimizer in (sparse, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (sparse, dense):
        optimizer.step()
