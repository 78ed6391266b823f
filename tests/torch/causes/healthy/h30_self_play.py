# SPDX-License-Identifier: MIT OR Apache-2.0
"""Self-play: the learner plays against all of its earlier versions in each round."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

GAMES, STATE, MOVES = 2048, 512, 64


def player():
    return nn.Sequential(nn.Linear(STATE, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, MOVES))


learner = player().cuda()
optimizer = torch.optim.Adam(learner.parameters(), lr=1e-4)
league = [copy.deepcopy(learner).requires_grad_(False)]

for generation in range(6):
    states = torch.randn(GAMES, STATE, device="cuda")
    logits = learner(states)
    with torch.no_grad():
        answers = torch.stack([opponent(states).softmax(-1) for opponent in league]).mean(0)
        payoff = torch.randn(MOVES, MOVES, device="cuda")
        gain = answers @ payoff.T
        reward = gain - gain.mean(1, keepdim=True)
    loss = -(F.softmax(logits, -1) * reward).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    league.append(copy.deepcopy(learner).requires_grad_(False))

with torch.no_grad():
    scores = torch.stack([F.mse_loss(opponent(states), learner(states)) for opponent in league])
print(scores.shape)
