# SPDX-License-Identifier: MIT OR Apache-2.0
"""Forecasts time series with dilated convolutions; a curriculum makes the series longer."""

import torch
from torch import nn


class Causal(nn.Module):
    def __init__(self, inside, outside, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.convolution = nn.Conv1d(inside, outside, 3, dilation=dilation)
        self.skip = nn.Conv1d(inside, outside, 1)

    def forward(self, x):
        return torch.relu(self.convolution(self.pad(x))) + self.skip(x)


model = nn.Sequential(*[Causal(16 if i == 0 else 128, 128, 2**i) for i in range(6)], nn.Conv1d(128, 16, 1)).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for length in (512, 1024, 2048, 4096, 4096, 4096):
    series = torch.randn(64, 16, length + 1, device="cuda").cumsum(-1)
    loss = (model(series[..., :-1]) - series[..., 1:]).abs().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    del series, loss
