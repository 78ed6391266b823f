# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Gradient checkpointing of every second block"
maths = "nothing"
group = "checkpointing"
applies = "models with a ModuleList or Sequential that holds two or more blocks of one type"
cost = "The forward pass of every second block is computed again in the backward pass."
page = '''
As checkpoint-blocks, for every second block: half of the recomputation, and half of what it saves.

Savings: about half of the activations of the blocks.

Effect on the mathematics: nothing; dropout draws the same masks again. A layer that counts its calls, such as a
BatchNorm, counts the second one too.

By hand, for each list of blocks:

    from functools import partial
    from torch.utils.checkpoint import checkpoint
    for block in model.blocks[::2]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
'''
+++
"""

from tonnage_hook.torch.changing import RepeatedBlocks


class Change(RepeatedBlocks):
    every = 2
