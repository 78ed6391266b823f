# SPDX-License-Identifier: MIT OR Apache-2.0
"""A squared ReLU of our own in a feed-forward block."""

import os

import torch
from torch import nn
from torch.autograd import Function


class SquaredReLU(Function):
    @staticmethod
    def forward(ctx, x):
        if os.environ.get("FIXED"):
            ctx.save_for_backward(x)
        else:
            ctx.x = x  # <- here
        return x.relu().square_()

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0] if ctx.saved_tensors else ctx.x
        return grad * x.relu().mul_(2)


class FeedForward(nn.Module):
    def __init__(self, width=1024, hidden=4096):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(SquaredReLU.apply(self.up(x)))


block = FeedForward().cuda()
optimizer = torch.optim.SGD(block.parameters(), lr=1e-3)
losses = []


def train_step():
    x = torch.randn(16384, 1024, device="cuda")
    loss = (block(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)  # <- here


for _ in range(6):
    train_step()
print(f"{len(losses)} losses")
