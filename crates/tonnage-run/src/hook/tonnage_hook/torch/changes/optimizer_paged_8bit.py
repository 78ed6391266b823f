# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Optimizer with a state of 8 bits that moves to the host"
maths = "algorithm"
group = "optimizer"
applies = "torch.optim.Adam and AdamW, where bitsandbytes is installed"
packages = ["bitsandbytes"]
cost = "Each step reads the state; what the driver has moved to the host comes back over the bus."
page = '''
The state of Adam in 8 bits, in managed memory: the driver moves it to the host when the GPU is full, and back when a
step reads it.

Savings: all of the state of the optimizer, as far as the GPU is full; the verdict counts managed memory beside
the memory of the device.

Effect on the mathematics: as optimizer-8bit does: the averages are rounded to 8 bits after each step.

By hand: optimizer = bitsandbytes.optim.PagedAdamW8bit(parameters, lr=...)
'''
+++
"""

from tonnage_hook.torch.changing import AnotherOptimizer


class Change(AnotherOptimizer):
    trainers = "paged_adamw_8bit"
    others = (
        ("Adam", "bitsandbytes.optim", "PagedAdam8bit", "bitsandbytes.optim.PagedAdam8bit"),
        ("AdamW", "bitsandbytes.optim", "PagedAdamW8bit", "bitsandbytes.optim.PagedAdamW8bit"),
    )
