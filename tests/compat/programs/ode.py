# SPDX-License-Identifier: MIT OR Apache-2.0
"""torchdiffeq: an adaptive solver, whose number of steps depends on values."""

import torch
from torchdiffeq import odeint_adjoint

field = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)).cuda()


class Dynamics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.field = field

    def forward(self, time, state):
        return self.field(state)


dynamics = Dynamics()
times = torch.linspace(0, 1, 5).cuda()
out = odeint_adjoint(dynamics, torch.randn(128, 64, device="cuda"), times, method="dopri5", rtol=1e-3, atol=1e-3)
out.square().mean().backward()
assert out.shape == (5, 128, 64)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
