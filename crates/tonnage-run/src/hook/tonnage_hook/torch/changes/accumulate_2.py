# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "Half the batch, gradients of two added up"
maths = "rounding"
group = "batch"
applies = "programs that train with a DataLoader and an optimizer of torch.optim, without batch normalization"
cost = "None in arithmetic; half as many rows in each kernel."
page = '''
The loader gives batches of half the size. The gradients of two backward passes add up before the optimizer takes its
step, so that the effective batch stays.

Savings: half of the activations, and of what else grows with the batch.

Effect on the mathematics: the sums are rounded in another order. A loss that is a mean over tokens weighs each half
the same, however many tokens it has. Layers of batch normalization would see half the batch: the change is not made
then.

By hand:

    loader = DataLoader(dataset, batch_size=batch_size // 2, ...)
    (loss / 2).backward()
    if (step + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()

or, with the Trainer, half the per_device_train_batch_size and twice the gradient_accumulation_steps.
'''
+++
"""

from tonnage_hook.torch.changing import Accumulated


class Change(Accumulated):
    parts = 2
