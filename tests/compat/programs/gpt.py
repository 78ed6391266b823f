# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small GPT, trained with AdamW and bf16 autocast: eager, compiled, or with CUDA graphs."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--tokens", type=int, default=1024)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--compile", default=None)
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
arguments = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.attention(self.first(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, layers, width, vocabulary=50304, tokens=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


model = GPT(arguments.layers, arguments.width, tokens=arguments.tokens).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
scaler = torch.cuda.amp.GradScaler(enabled=arguments.scaler)
step = torch.compile(model, mode=arguments.compile) if arguments.compile else model
data = torch.randint(0, 50304, (200_000,))
for number in range(arguments.steps):
    for _ in range(arguments.accumulate):
        starts = torch.randint(len(data) - arguments.tokens - 1, (arguments.batch,))
        ids = torch.stack([data[i : i + arguments.tokens] for i in starts]).pin_memory().cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16 if arguments.scaler else torch.bfloat16):
            loss = step(ids, ids) / arguments.accumulate
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    if math.isnan(value):
        raise SystemExit("loss is not a number")
parameters = sum(p.numel() for p in model.parameters())
print(f"done, {parameters} parameters, {torch.cuda.max_memory_allocated()} bytes at most")
