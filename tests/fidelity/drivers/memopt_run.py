# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a script of rasbt/pytorch-memory-optim for some batches, without CIFAR-10 and without downloaded weights.

Images are zeros of the size that the script's transforms give. Twelve batches are trained on, three times as many as
are accumulated; the last batch of the validation and test sets is smaller, as there.
"""

import sys
import types
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

source, script = sys.argv[1:3]


def loaders(batch_size, **more):
    def made(count, drop_last=False):
        images, labels = torch.zeros(count, 3, 224, 224), torch.zeros(count, dtype=torch.int64)
        return DataLoader(TensorDataset(images, labels), batch_size=batch_size, drop_last=drop_last)

    return made(12 * batch_size, drop_last=True), made(3 * batch_size + 8), made(3 * batch_size + 8)


sys.modules["local_utilities"] = types.ModuleType("local_utilities")
sys.modules["local_utilities"].get_dataloaders_cifar10 = loaders
sys.modules["watermark"] = types.ModuleType("watermark")
sys.modules["watermark"].watermark = lambda **more: ""
import torchvision.models  # noqa: E402

make = torchvision.models.vit_l_16
torchvision.models.vit_l_16 = lambda weights=None, **more: make(**more)
path = Path(source) / script
exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
