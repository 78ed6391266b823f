# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Optimizer with a state of 8 bits"
maths = "algorithm"
group = "optimizer"
applies = "torch.optim.Adam and AdamW, where bitsandbytes is installed"
packages = ["bitsandbytes"]
cost = "Little: each step quantizes the state in blocks."
page = '''
Adam keeps two numbers for each parameter. bitsandbytes keeps them in 8 bits instead of 32, with a scale for every 256
of them; parameters with fewer than 4096 elements keep 32 bits.

Savings: about three quarters of the state of the optimizer, which is half of what weights, gradients and state
take together. Its step needs no copy of the parameters either.

Effect on the mathematics: another algorithm; the averages are rounded to 8 bits after each step. It is known to
train large models as well as Adam does, and embeddings less well.

By hand: optimizer = bitsandbytes.optim.AdamW8bit(parameters, lr=...)
'''
+++
"""

from tonnage_hook.torch.changing import AnotherOptimizer


class Change(AnotherOptimizer):
    trainers = "adamw_bnb_8bit"
    others = (
        ("Adam", "bitsandbytes.optim", "Adam8bit", "bitsandbytes.optim.Adam8bit"),
        ("AdamW", "bitsandbytes.optim", "AdamW8bit", "bitsandbytes.optim.AdamW8bit"),
    )
