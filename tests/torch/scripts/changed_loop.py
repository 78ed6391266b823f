# SPDX-License-Identifier: MIT OR Apache-2.0
"""Gradients that are filled with zeros, and an evaluation with gradients on."""

import torch

layers = [torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(6)]
model = torch.nn.Sequential(*layers).to("cuda")
# made
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(2):
    model.train()
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    model.eval()
    output = model(torch.randn(4096, 2048, device="cuda"))
    right = output.argmax(-1)
    del output, loss
