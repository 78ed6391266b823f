# SPDX-License-Identifier: MIT OR Apache-2.0
"""Low-rank adapters on a frozen network."""

import torch
from torch import nn


class Adapter(nn.Module):
    def __init__(self, base, rank=16, alpha=32):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


layers = []
for _ in range(8):
    layers += [Adapter(nn.Linear(4096, 4096, bias=False)), nn.SiLU()]
model = nn.Sequential(*layers, nn.Linear(4096, 512)).to("cuda", torch.bfloat16)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=2e-4)

for _ in range(4):
    x = torch.randn(8192, 4096, dtype=torch.bfloat16, device="cuda")
    labels = torch.randint(512, (8192,), device="cuda")
    loss = nn.functional.cross_entropy(model(x).float(), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
