# SPDX-License-Identifier: MIT OR Apache-2.0
"""DQN on frames of 84 × 84."""

import os

import torch
import torch.nn.functional as F
from torch import nn

CAPACITY, BATCH = 50_000, 32


class ReplayMemory:
    def __init__(self, capacity, device):
        self.device = device
        self.states = torch.zeros(capacity, 4, 84, 84, device=device)  # <- here
        self.next_states = torch.zeros(capacity, 4, 84, 84, device=device)  # <- here
        self.actions = torch.zeros(capacity, dtype=torch.long, device=device)
        self.rewards = torch.zeros(capacity, device=device)
        self.size = 0

    def push(self, state, action, reward, next_state):
        i = self.size
        self.states[i], self.actions[i], self.rewards[i], self.next_states[i] = state, action, reward, next_state
        self.size += 1

    def sample(self, count):
        rows = torch.randint(0, self.size, (count,), device=self.device)
        batch = self.states[rows], self.actions[rows], self.rewards[rows], self.next_states[rows]
        return [part.to("cuda") for part in batch]


def q_network():
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 9 * 9, 512), nn.ReLU(), nn.Linear(512, 6),
    ).cuda()  # fmt: skip


memory = ReplayMemory(CAPACITY, "cpu" if os.environ.get("FIXED") else "cuda")
online, target = q_network(), q_network()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-4)
state = torch.rand(4, 84, 84)
for step in range(6):
    for _ in range(8):
        next_state = torch.rand(4, 84, 84)
        memory.push(state, step % 6, 1.0, next_state)
        state = next_state
    states, actions, rewards, next_states = memory.sample(BATCH)
    with torch.no_grad():
        goal = rewards + 0.99 * target(next_states).amax(1)
    loss = F.smooth_l1_loss(online(states).gather(1, actions[:, None]).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
