# SPDX-License-Identifier: MIT OR Apache-2.0
"""A deep decoder that computes its blocks again in the backward pass."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

B, T, D, H = 8, 1024, 1024, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.norm2(x))


blocks = nn.ModuleList(Block() for _ in range(8)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4)
for _ in range(3):
    x = torch.randn(B, T, D, device="cuda", dtype=torch.bfloat16)
    y = x.roll(-1, 1)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    loss = F.mse_loss(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    del x, y, loss
