# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 5: logits of a large vocabulary, and the copies that the loss makes of them."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, TOKENS = 128256, 64, 32768


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.embedding(tokens)


def loss_of(hidden, tokens):
    logits = model.head(hidden)
    return F.cross_entropy(logits, tokens, reduction="sum")  # <- here


with torch.device("cuda"):
    model = Model()
    tokens = torch.zeros(TOKENS, dtype=torch.long)
hidden = model(tokens)
if os.environ.get("FIXED"):
    parts = zip(hidden.chunk(8), tokens.chunk(8))
    loss = sum(checkpoint(loss_of, part, labels, use_reentrant=False) for part, labels in parts)
else:
    loss = loss_of(hidden, tokens)
loss.backward()
