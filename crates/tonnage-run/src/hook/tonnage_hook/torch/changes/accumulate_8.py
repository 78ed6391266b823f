# SPDX-License-Identifier: MIT OR Apache-2.0
"""
+++
title = "An eighth of the batch, gradients of eight added up"
maths = "rounding"
group = "batch"
applies = "programs that train with a DataLoader and an optimizer of torch.optim, without batch normalization"
cost = "None in arithmetic; an eighth of the rows in each kernel."
page = '''
The loader gives batches of an eighth of the size. The gradients of eight backward passes add up before the optimizer
takes its step, so that the effective batch stays.

Savings: seven eighths of the activations, and of what else grows with the batch.

Effect on the mathematics: the sums are rounded in another order. A loss that is a mean over tokens weighs each part
the same, however many tokens it has. Layers of batch normalization would see a smaller batch: the change is not made
then.

By hand:

    loader = DataLoader(dataset, batch_size=batch_size // 8, ...)
    (loss / 8).backward()
    if (step + 1) % 8 == 0:
        optimizer.step()
        optimizer.zero_grad()

or, with the Trainer, an eighth of the per_device_train_batch_size and eight times the gradient_accumulation_steps.
'''
+++
"""

from tonnage_hook.torch.changing import Accumulated


class Change(Accumulated):
    parts = 8
