# SPDX-License-Identifier: MIT OR Apache-2.0
"""Every second of many buffers is freed: whole segments, so PyTorch can give them back for larger ones."""

import random

import torch

random.seed(0)
buffers = [torch.empty(random.randint(80, 200) << 20, dtype=torch.uint8, device="cuda") for _ in range(60)]
buffers = buffers[::2]
large = [torch.empty(1200 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
