# SPDX-License-Identifier: MIT OR Apache-2.0
"""A policy in training beside a frozen reference: both are needed, and both were reckoned with by no one."""

import copy

import torch
from torch import nn

with torch.device("cuda"):
    policy = nn.Sequential(*[nn.Linear(4096, 4096, dtype=torch.bfloat16) for _ in range(48)])  # 1.5 GiB
reference = copy.deepcopy(policy).requires_grad_(False)  # <- here
optimizer = torch.optim.AdamW(policy.parameters())
for _ in range(2):
    batch = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = reference(batch)
    (policy(batch) - wanted).pow(2).mean().backward()
    optimizer.step()  # <- here
    optimizer.zero_grad()
