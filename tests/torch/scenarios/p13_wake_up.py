# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pain 13: training and generation take turns; the sleeper's wake-up finds its memory in pieces."""

import torch


def buffer(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


cache = [buffer(512) for _ in range(24)]
del cache  # generation sleeps
states, activations = [], []
for _ in range(24):
    states.append(buffer(48))
    activations.append(buffer(464))
del activations  # training sleeps, its states stay
weights = [buffer(440) for _ in range(6)]
cache = torch.empty(5000 << 20, dtype=torch.uint8, device="cuda")  # <- here
