# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains a network with weights and activations rounded to eight bits, through a straight-through estimator."""

import torch
from torch import nn
from torch.autograd import Function


class Round(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (x / scale).round().clamp(-128, 127) * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        inside = (x.abs() <= 127 * scale).to(grad.dtype)
        return grad * inside, None


class QuantizedLinear(nn.Linear):
    def __init__(self, inside, outside):
        super().__init__(inside, outside)
        self.register_buffer("range", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.range.lerp_(x.detach().abs().amax(), 0.01)
        weight = Round.apply(self.weight, self.weight.detach().abs().amax() / 127)
        return nn.functional.linear(Round.apply(x, self.range / 127), weight, self.bias)


model = nn.Sequential(
    QuantizedLinear(1024, 4096), nn.ReLU(), QuantizedLinear(4096, 4096), nn.ReLU(), QuantizedLinear(4096, 100)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(4):
    x = torch.randn(8192, 1024, device="cuda")
    y = torch.randint(100, (8192,), device="cuda")
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
