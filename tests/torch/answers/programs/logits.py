# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small model with a large vocabulary: the logits and the copies that the loss makes of them."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, BATCH, TOKENS = 128256, 1024, 4, 2048
torch.set_default_dtype(torch.bfloat16)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.blocks(self.embedding(tokens))


def loss_of(hidden, tokens):
    logits = model.head(hidden).float()
    return F.cross_entropy(logits, tokens, reduction="sum")  # <- here


with torch.device("cuda"):
    model = Model()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    tokens = torch.zeros(BATCH * TOKENS, dtype=torch.long, device="cuda")
    hidden = model(tokens)
    if os.environ.get("FIXED"):
        parts = zip(hidden.chunk(8), tokens.chunk(8))
        loss = sum(checkpoint(loss_of, part, labels, use_reentrant=False) for part, labels in parts)
    else:
        loss = loss_of(hidden, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del hidden, loss
