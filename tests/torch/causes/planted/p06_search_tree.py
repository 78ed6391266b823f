# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tree search with a learned model of the world: each move builds a small tree and takes its best child."""

import gc
import os
import weakref

import torch
from torch import nn

gc.disable()  # Collections made the moves stutter.

WIDTH, BATCH, BRANCHES = 8192, 4096, 4


class Node:
    def __init__(self, state, parent=None):
        self.state = state
        self.children = []
        if parent is not None and os.environ.get("FIXED"):
            parent = weakref.proxy(parent)
        self.parent = parent  # <- here

    def expand(self, dynamics):
        for k in range(BRANCHES):
            child = Node(dynamics(self.state).add_(k), parent=self)
            self.children.append(child)

    def depth(self):
        return 0 if self.parent is None else self.parent.depth() + 1


dynamics = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
critic = nn.Linear(WIDTH, 1, device="cuda")


@torch.inference_mode()
def search(observation):
    root = Node(observation)
    root.expand(dynamics)
    values = [critic(child.state).mean() for child in root.children]
    assert root.children[0].depth() == 1
    return torch.stack(values)


for move in range(5):
    print(move, search(torch.randn(BATCH, WIDTH, device="cuda")).shape)
