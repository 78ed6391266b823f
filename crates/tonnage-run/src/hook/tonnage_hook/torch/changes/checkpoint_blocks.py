# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Gradient checkpointing of repeated blocks"
maths = "nothing"
group = "checkpointing"
strong = true
applies = "models with a ModuleList or Sequential that holds two or more blocks of one type"
cost = "The forward pass of every block is computed again in the backward pass."
page = '''
In a forward pass every block keeps what its backward pass needs. With checkpointing a block keeps its input only, and
computes the rest again when the backward pass reaches it. Then the activations of one block are there at a time,
instead of those of all blocks.

Savings: most of the activations of the blocks. It does not help where the peak is the weights, the optimizer or
the loss.

Effect on the mathematics: nothing; dropout draws the same masks again. A layer that counts its calls, such as a
BatchNorm, counts the second one too: its running averages move twice in a step.

By hand, for each list of blocks:

    from functools import partial
    from torch.utils.checkpoint import checkpoint
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
'''
+++
"""

from tonnage_hook.torch.changing import RepeatedBlocks


class Change(RepeatedBlocks):
    every = 1
