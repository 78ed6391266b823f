# SPDX-License-Identifier: MIT OR Apache-2.0
"""A mixture of experts with a fixed capacity for each expert."""

import torch
from torch import nn

TOKENS, WIDTH, EXPERTS, CAPACITY = 16384, 1024, 8, 2560


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 4 * WIDTH) * 0.02)
        self.down = nn.Parameter(torch.randn(EXPERTS, 4 * WIDTH, WIDTH) * 0.02)

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        weight, rows = gates.topk(CAPACITY, dim=0)
        routed = x[rows.T]
        hidden = nn.functional.gelu(torch.bmm(routed, self.up))
        output = torch.bmm(hidden, self.down) * weight.T[..., None]
        return torch.zeros_like(x).index_add(0, rows.T.flatten(), output.flatten(0, 1)), gates


layer = Experts().cuda()
head = nn.Linear(WIDTH, WIDTH).cuda()
optimizer = torch.optim.AdamW([*layer.parameters(), *head.parameters()])
for _ in range(4):
    x = torch.randn(TOKENS, WIDTH, device="cuda")
    mixed, gates = layer(x)
    balance = EXPERTS * gates.mean(0).square().sum()
    loss = (head(x + mixed) - x.roll(-1, 0)).square().mean() + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
