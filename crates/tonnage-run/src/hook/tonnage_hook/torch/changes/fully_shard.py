# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "weights, gradients and optimizer state sharded over the GPUs (FSDP2, as ZeRO-3)"
maths = "rounding"
group = "sharding"
applies = "models with a list of repeated blocks, in programs of one process; the machine has several GPUs (--gpus)"
cost = "Weights are gathered before each block, forward and backward, and gradients are summed over the GPUs."
shards = true
page = '''
Each GPU keeps its part of every weight, of its gradient and of its optimizer state. Before a block is computed, its
weights are gathered from all GPUs; afterwards they are given up again. In the backward pass the gradients are summed
and each GPU keeps its part of the sums.

Savings: with N GPUs all but one Nth of the weights, gradients and optimizer state, except for the blocks that
are gathered at the moment. It does not save activations.

Method: rank 0 of N is really run, by PyTorch's own FSDP2, with collectives that move nothing. The memory that
NCCL itself takes on each GPU is not part of it.

Effect on the mathematics: each GPU computes the batch that the program has, so a step is over N times as many
samples; sums over GPUs round differently.

By hand: fully_shard(block) for each block, then fully_shard(model), before the optimizer is made; start the program
with torchrun --nproc-per-node N
'''
+++
"""

from tonnage_hook.torch.changing import Sharded


class Change(Sharded):
    keeps_weights = False
