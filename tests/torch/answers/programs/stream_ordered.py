# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch on top of cudaMallocAsync: the driver's pool rounds what it takes."""

import torch

held = [torch.empty(33 << 20, dtype=torch.uint8, device="cuda") for _ in range(100)]
