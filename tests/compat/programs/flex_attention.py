# SPDX-License-Identifier: MIT OR Apache-2.0
"""flex_attention with a block mask, compiled."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 512), None, None, 2048, 2048, device="cuda")
attend = torch.compile(flex_attention)
q, k, v = (torch.randn(2, 8, 2048, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
attend(q, k, v, block_mask=mask).sum().backward()
print(f"done, {mask.sparsity():.1f} % masked, {torch.cuda.max_memory_allocated()} bytes at most")
