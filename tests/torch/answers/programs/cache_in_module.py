# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs for a while, then out of memory: the KV cache grows with every token."""

import os

import torch
from torch import nn

BATCH = 32 if os.environ.get("FIXED") else 64


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(1024, 1024, dtype=torch.bfloat16)
        self.kv_cache = torch.zeros(BATCH, 32768, 0, dtype=torch.bfloat16, device="cuda")

    def forward(self, x):
        token = torch.zeros(BATCH, 32768, 8, dtype=torch.bfloat16, device="cuda")
        self.kv_cache = torch.cat([self.kv_cache, token], dim=2)  # <- here
        return self.project(x)


with torch.device("cuda"):
    server = Server().eval()
with torch.no_grad():
    for _ in range(256):
        server(torch.zeros(BATCH, 1024, dtype=torch.bfloat16, device="cuda"))
