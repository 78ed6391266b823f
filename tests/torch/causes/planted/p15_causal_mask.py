# SPDX-License-Identifier: MIT OR Apache-2.0
"""A causal decoder on scaled_dot_product_attention."""

import os

import torch
import torch.nn.functional as F
from torch import nn

B, T, H, D = 8, 2048, 16, 1024


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.proj = nn.Linear(D, D, bias=False)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return x + self.proj(y.transpose(1, 2).reshape(B, T, D))


def causal_mask():
    if os.environ.get("FIXED"):
        return None
    mask = torch.full((T, T), float("-inf"), device="cuda", dtype=torch.bfloat16).triu(1)
    return mask.repeat(B, H, 1, 1)  # <- here


layers = nn.ModuleList(Layer() for _ in range(2)).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(B, T, D, device="cuda", dtype=torch.bfloat16)
    mask = causal_mask()
    for layer in layers:
        x = layer(x, mask)
    x.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    del x, mask
