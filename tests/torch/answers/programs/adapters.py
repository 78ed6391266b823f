# SPDX-License-Identifier: MIT OR Apache-2.0
"""A frozen model with small adapters: gradients and states are tiny; activations and logits make the peak."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, INNER, LAYERS, VOCABULARY, TOKENS = 2048, 7168, 16, 64000, 4096
torch.set_default_dtype(torch.bfloat16)


class Adapted(nn.Module):
    def __init__(self, inputs, outputs, rank=16):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))  # <- here


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (Adapted(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = Adapted(WIDTH, INNER), Adapted(WIDTH, INNER), Adapted(INNER, WIDTH)
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])

    def forward(self, x):
        y = self.norms[0](x)
        q, k, v = (p(y).unflatten(-1, (16, 128)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # <- here


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False).requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if os.environ.get("FIXED") else block(x)
        return self.head(x)


with torch.device("cuda"):
    model = Model()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(2):
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="cuda")
    logits = model(tokens)
    F.cross_entropy(logits.float().view(-1, VOCABULARY), tokens.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    del logits
