# SPDX-License-Identifier: MIT OR Apache-2.0
"""Serves sessions whose caches come and go, until a long prompt arrives."""

import random

import torch
from torch import nn

LAYERS, HEADS, WIDTH = 32, 8, 128  # a cache takes 128 KiB for each token
ROOM = 52_000  # tokens of all sessions together


def new_cache(tokens: int) -> torch.Tensor:
    return torch.empty(LAYERS, 2, HEADS, tokens, WIDTH, dtype=torch.bfloat16, device="cuda")


random.seed(1)
model = nn.Sequential(*(nn.Linear(4096, 61440, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)))
sessions: list[torch.Tensor] = []
for _ in range(120):
    tokens = random.randrange(500, 6000, 100)
    while sum(cache.shape[3] for cache in sessions) + tokens > ROOM:
        sessions.pop(random.randrange(len(sessions)))
    sessions.append(new_cache(tokens))
# Half of them have gone, so there is room for a long prompt.
while sum(cache.shape[3] for cache in sessions) > ROOM // 2:
    sessions.pop(random.randrange(len(sessions)))
sessions.append(new_cache(32_000))
