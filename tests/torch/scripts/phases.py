# SPDX-License-Identifier: MIT OR Apache-2.0
"""Passes and steps that end in every way they can, in a program that compiles a function it never calls."""

import importlib.util

assert importlib.util.find_spec("torch") is not None
assert importlib.util.find_spec("torch") is not None

import torch  # noqa: E402
from torch import nn  # noqa: E402


@torch.compile
def never_called(x):
    return x + 1


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        self.inner(x)
        raise ValueError("on purpose")


class FailingSGD(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("on purpose")


def fails(function, *arguments):
    try:
        function(*arguments)
    except ValueError:
        return
    raise AssertionError("did not fail")


x = torch.ones(2, 8, device="cuda")
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
failing = Failing().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
failing_optimizer = FailingSGD(model.parameters(), lr=0.1)

model(x).sum().backward()
optimizer.step()
fails(failing, x)
fails(failing_optimizer.step)
model(x).sum().backward()


def again():
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    return loss


optimizer.step(again)
model.eval()
model(x)
with torch.no_grad():
    model(x)
frozen = nn.Linear(8, 8).cuda().requires_grad_(False).eval()
frozen(x)
torch.empty(1 << 20, device="cuda")
