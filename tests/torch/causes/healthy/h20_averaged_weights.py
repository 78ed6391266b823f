# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a network and evaluates the moving average of its weights after each epoch."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(12)]).cuda()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)


@torch.no_grad()
def evaluate(network):
    x = torch.randn(2048, 2048, device="cuda")
    return (network(x) - x).square().mean()


for epoch in range(3):
    for _ in range(2):
        x = torch.randn(2048, 2048, device="cuda")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
    print(epoch, evaluate(average).shape)
