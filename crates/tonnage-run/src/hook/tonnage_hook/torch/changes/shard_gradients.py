# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "gradients and optimizer state sharded over the GPUs (FSDP2 without resharding, as ZeRO-2)"
maths = "rounding"
group = "sharding"
applies = "models with a list of repeated blocks, in programs of one process; the machine has several GPUs (--gpus)"
cost = "Weights are gathered once in each step, and gradients are summed over the GPUs."
shards = true
page = '''
Each GPU keeps its part of every gradient and of the optimizer state. The weights are gathered in the forward pass and
stay until the backward pass has used them, so they are gathered once and not twice.

Savings: with N GPUs all but one Nth of the gradients and the optimizer state. Weights and activations are there
in full while a step is computed.

Method: rank 0 of N is really run, by PyTorch's own FSDP2, with collectives that move nothing. The memory that
NCCL itself takes on each GPU is not part of it.

Effect on the mathematics: each GPU computes the batch that the program has, so a step is over N times as many
samples; sums over GPUs round differently.

By hand: fully_shard(block, reshard_after_forward=False) for each block, then the same for the model, before the
optimizer is made; start the program with torchrun --nproc-per-node N
'''
+++
"""

from tonnage_hook.torch.changing import Sharded


class Change(Sharded):
    keeps_weights = True
