# SPDX-License-Identifier: MIT OR Apache-2.0
"""xformers: memory-efficient attention with a block-diagonal mask."""

import torch
import xformers.ops as xops

q, k, v = (torch.randn(1, 1024, 16, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
mask = xops.fmha.BlockDiagonalMask.from_seqlens([200, 300, 524])
xops.memory_efficient_attention(q, k, v, attn_bias=mask).sum().backward()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
