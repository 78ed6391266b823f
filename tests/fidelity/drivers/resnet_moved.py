# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the program of pytorch/pytorch issue 107667 does: a ResNet-18 with random weights is moved to the GPU."""

import torch
import torchvision

resnet = torchvision.models.resnet18(weights=None).to("cuda")
print("allocated", torch.cuda.memory_allocated() / 1024**2)
