# SPDX-License-Identifier: MIT OR Apache-2.0
"""Builds a bank of features for nearest-neighbour classification."""

import os

import torch
from torch import nn

CHUNK, WIDTH, CHUNKS = 131072, 512, 6
encoder = nn.Sequential(nn.Linear(64, WIDTH), nn.LayerNorm(WIDTH)).cuda().eval()


@torch.no_grad()
def build():
    if os.environ.get("FIXED"):
        bank = torch.empty(CHUNKS * CHUNK, WIDTH, device="cuda")
        for i in range(CHUNKS):
            encode_into(bank[i * CHUNK : (i + 1) * CHUNK])
        return bank
    bank = torch.empty(0, WIDTH, device="cuda")
    for _ in range(CHUNKS):
        bank = torch.cat([bank, encode()])  # <- here
    return bank


def encode():
    return encoder(torch.randn(CHUNK, 64, device="cuda"))


def encode_into(rows):
    rows.copy_(encode())


bank = build()
query = encoder(torch.randn(32, 64, device="cuda"))
print((query @ bank.T).topk(5).indices.shape)
