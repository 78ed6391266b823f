# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fails for another reason, with memory left."""

import torch

held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
raise ValueError("learning rate must be positive")
