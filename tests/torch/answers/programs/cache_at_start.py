# SPDX-License-Identifier: MIT OR Apache-2.0
"""A server sets the KV cache aside at its start, for more tokens than there is room."""

import os

import torch
from torch import nn

LAYERS, HEADS, SIZE = 16, 8, 128
SEQUENCES = 32 if os.environ.get("FIXED") else 64


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4096, 4096, dtype=torch.bfloat16)
        self.kv_cache = []

    def set_aside(self, sequences, length):
        for _ in range(LAYERS):
            self.kv_cache.append(  # <- here
                torch.empty(2, sequences, HEADS, length, SIZE, dtype=torch.bfloat16, device="cuda")  # <- here
            )

    def forward(self, x):
        return self.project(x)


with torch.device("cuda"):
    server = Server().eval()
with torch.no_grad():
    server.set_aside(SEQUENCES, 8192)
    server(torch.zeros(SEQUENCES, 4096, dtype=torch.bfloat16, device="cuda"))
