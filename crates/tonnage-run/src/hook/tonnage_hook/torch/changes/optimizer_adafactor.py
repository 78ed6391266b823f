# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Adafactor instead of Adam"
maths = "algorithm"
group = "optimizer"
applies = "torch.optim.Adam and AdamW; torch 2.5 or newer"
cost = "Little: a step computes sums over rows and columns."
page = '''
Adam keeps two numbers for each parameter. Adafactor keeps one for each row and one for each column of a matrix.

Savings: nearly all of the state of the optimizer.

Effect on the mathematics: another algorithm, without momentum; the learning rate has another meaning, and has to
be found anew.

By hand: optimizer = torch.optim.Adafactor(parameters, lr=...)
'''
+++
"""

from tonnage_hook.torch.changing import AnotherOptimizer


class Change(AnotherOptimizer):
    same = ("lr", "weight_decay")
    others = (
        ("Adam", "torch.optim", "Adafactor", "torch.optim.Adafactor"),
        ("AdamW", "torch.optim", "Adafactor", "torch.optim.Adafactor"),
    )
