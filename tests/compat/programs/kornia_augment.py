# SPDX-License-Identifier: MIT OR Apache-2.0
"""kornia: augmentations on the device, each applied with a probability, then an edge detector."""

import kornia
import torch

images = torch.rand(64, 3, 256, 256, device="cuda")
augment = kornia.augmentation.AugmentationSequential(
    kornia.augmentation.RandomHorizontalFlip(p=0.5),
    kornia.augmentation.RandomAffine(15.0, p=0.5),
    kornia.augmentation.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.5),
    kornia.augmentation.RandomResizedCrop((224, 224)),
)
out = augment(images)
assert out.shape == (64, 3, 224, 224)
kornia.filters.canny(out)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
