# SPDX-License-Identifier: MIT OR Apache-2.0
"""Managed memory may be more than the GPU has: it moves to the host. Paged optimizers do this."""

import ctypes

import torch

held = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
driver = ctypes.CDLL("libcuda.so.1")
for _ in range(12):
    pointer = ctypes.c_void_p()
    code = driver.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(1 << 30), ctypes.c_uint(1))
    assert code == 0, code
