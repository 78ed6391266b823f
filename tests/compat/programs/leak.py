# SPDX-License-Identifier: MIT OR Apache-2.0
"""Outputs kept in a list with their graphs: runs out of memory."""

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, total = [], 0
for _ in range(300):
    out = model(torch.randn(2048, 4096, device="cuda"))
    loss = out.square().mean()
    kept.append(out)
    total = total + loss
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
print("done")
