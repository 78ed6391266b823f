# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batches in pinned memory are copied to the device, and each copy is kept."""

import os

import torch

host = [torch.empty(128 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
on_device = []
for step in range(100):
    if os.environ.get("FIXED"):
        on_device.clear()
    on_device.append(host[step % 4].to("cuda", non_blocking=True))  # <- here
