# SPDX-License-Identifier: MIT OR Apache-2.0
"""One holder of each sort, distinguished by the size of its tensors; then an out-of-memory inside a function.

A line that must be named as the place of a holder ends with a comment that names it.
"""

import copy
import gc

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

gc.disable()


def block(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")


def leaf(mebibytes):
    return torch.ones(mebibytes << 18, device="cuda", requires_grad=True)


plain = block(2)  # plain
kept = []
for _ in range(3):
    kept.append(block(3))  # kept


class Trainer:
    shared = []

    def __init__(self):
        self.history = {}
        self.last = None

    def log(self, step):
        self.history[step] = block(5)  # history
        self.last = block(6)  # last
        self.shared.append(block(4))  # shared


trainer = Trainer()
for step in range(2):
    trainer.log(step)

keys = [block(7)]
for _ in range(2):
    keys[0] = torch.cat([keys[0], block(1)])  # keys


def make():
    inner = block(11)  # inner

    def use():
        return inner

    return use


use = make()


def remember(number, memory={}):  # noqa: B006, the mistake is meant
    memory[number] = block(12)  # memory


remember(1)


def numbers():
    waiting = block(13)  # waiting
    yield 1
    yield waiting


generator = numbers()
next(generator)


def fail():
    lost = block(18)  # lost
    raise ValueError(lost.shape)


try:
    fail()
except ValueError as error:
    caught = error  # caught

saved = []
for _ in range(2):
    saved.append([[block(19)]])  # saved

weights = leaf(23)
total = 0
for _ in range(3):
    loss = (weights * 2).relu().sum()
    total = total + loss  # total

gain = leaf(29)
hidden = torch.zeros(29 << 18, device="cuda")
for _ in range(3):
    hidden = (hidden * gain).tanh()  # hidden
    mean = hidden.mean()

slope = leaf(31)
losses = []
for _ in range(2):
    losses.append((slope * 2).relu().sum())  # losses

policy = nn.Linear(1024, 37 << 8, bias=False, device="cuda")  # policy
reference = copy.deepcopy(policy).requires_grad_(False)  # reference
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1, momentum=0.9)  # optimizer
policy(torch.ones(1, 1024, device="cuda")).sum().backward()
optimizer.step()

# A tensor that is made of others, as those of distributed jobs are; and one that the collector does not know of.
pair = TwoTensor(torch.ones(42 << 18, device="cuda"), torch.ones(42 << 18, device="cuda"))  # pair
frozen = block(44)  # frozen
gc.freeze()
recomputed = 0


def again(x):
    global recomputed
    recomputed += 1
    return x.relu().tanh()


bend = leaf(41)
held_by_checkpoint = checkpoint(again, bend * 2, use_reentrant=False)
ran = recomputed


class Same(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient


# torch raises where the node of this view is read, and where a leaf is requested.
changed = Same.apply(leaf(1) * 2)
view_of_changed = changed[1:]
with torch.no_grad():
    changed.add_(1)


def evaluate():
    outputs = {"logits": [block(43)]}  # outputs
    local = block(47)  # local
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return len(outputs) + local.ndim


evaluate()
assert recomputed == ran, "a census ran the script's own hooks"

# With Python's collector off, all that a census kept would stay.
before = torch.cuda.memory_allocated()
kept.clear()
assert torch.cuda.memory_allocated() == before - (9 << 20), "a census keeps tensors"
del caught
assert torch.cuda.memory_allocated() == before - (27 << 20), "a census keeps frames"
assert gc.collect() == 0 or torch.cuda.memory_allocated() == before - (27 << 20), "a census leaves garbage"
print("nothing was kept")
