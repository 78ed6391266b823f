# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fits the hyperparameters of a Gaussian process by its marginal likelihood."""

import torch

N, D = 4096, 8
x = torch.rand(N, D, device="cuda")
y = torch.sin(x.sum(1)) + 0.1 * torch.randn(N, device="cuda")
log_scale = torch.zeros(D, device="cuda", requires_grad=True)
log_noise = torch.tensor(-2.0, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([log_scale, log_noise], lr=0.1)
identity = torch.eye(N, device="cuda")


def kernel(a, b):
    a, b = a / log_scale.exp(), b / log_scale.exp()
    squared = a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.T
    return torch.exp(-0.5 * squared.clamp(min=0))


def negative_likelihood():
    covariance = kernel(x, x) + log_noise.exp() * identity
    factor, _ = torch.linalg.cholesky_ex(covariance)
    alpha = torch.cholesky_solve(y[:, None], factor)
    return 0.5 * (y @ alpha.squeeze(1)) + factor.diagonal().log().sum()


for step in range(4):
    loss = negative_likelihood()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
