# SPDX-License-Identifier: MIT OR Apache-2.0
"""Plain torch: record a few steps on the GPU that is there.

On a machine without one, try it as `tonnage run --gpu a100-40gb -- python plain.py`.
"""

import tonnage
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

with tonnage.record("plain.tonnage") as recorded:
    for _ in range(3):
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

print(recorded.recording.explain())
