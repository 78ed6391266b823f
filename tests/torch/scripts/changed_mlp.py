# SPDX-License-Identifier: MIT OR Apache-2.0
"""A wide network with a small batch, where the step of the optimizer makes the peak."""

import torch

layers = [torch.nn.Linear(4096, 4096, device="cuda") for _ in range(4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
# ready
for _ in range(2):
    loss = model(torch.randn(4, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
