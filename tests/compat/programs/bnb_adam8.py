# SPDX-License-Identifier: MIT OR Apache-2.0
"""bitsandbytes: Adam with 8 bits of state, then AdamW with its state in managed memory."""

import argparse

import bitsandbytes as bnb
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="Adam8bit")
arguments = parser.parse_args()
model = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192, device="cuda") for _ in range(4)])
optimizer = getattr(bnb.optim, arguments.optimizer)(model.parameters(), lr=1e-4)
for _ in range(2):
    model(torch.randn(8, 8192, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"done, {torch.cuda.memory_allocated() >> 20} MiB at rest, {torch.cuda.max_memory_allocated()} bytes at most")
