# SPDX-License-Identifier: MIT OR Apache-2.0
"""scaled_dot_product_attention by each of its ways, forward and backward."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

q, k, v = (torch.randn(4, 16, 2048, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
for way in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION):
    torch.cuda.reset_peak_memory_stats()
    with sdpa_kernel(way):
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    print(way.name, torch.cuda.max_memory_allocated() >> 20)
few = torch.zeros(1, 2, 8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
F.scaled_dot_product_attention(few, few, few, is_causal=True, dropout_p=0.1).sum().backward()
print("done")
