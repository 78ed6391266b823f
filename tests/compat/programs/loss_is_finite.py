# SPDX-License-Identifier: MIT OR Apache-2.0
"""A training loop that stops at a loss that is not finite."""

import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    if not torch.isfinite(loss):
        raise RuntimeError("loss is not finite, stopping")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    optimizer.zero_grad()
print("done")
