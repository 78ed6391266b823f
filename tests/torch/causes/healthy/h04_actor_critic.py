# SPDX-License-Identifier: MIT OR Apache-2.0
"""Proximal policy optimization: a rollout is collected, used for several epochs and replaced."""

import torch
from torch import nn

STEPS, ENVIRONMENTS, OBSERVATION, ACTIONS = 32, 512, 512, 8


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBSERVATION, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh())
        self.policy = nn.Linear(1024, ACTIONS)
        self.value = nn.Linear(1024, 1)

    def forward(self, observation):
        hidden = self.body(observation)
        return self.policy(hidden), self.value(hidden).squeeze(-1)


agent = ActorCritic().cuda()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
observations = torch.zeros(STEPS, ENVIRONMENTS, OBSERVATION, device="cuda")
actions = torch.zeros(STEPS, ENVIRONMENTS, dtype=torch.long, device="cuda")
log_probs, rewards, values = (torch.zeros(STEPS, ENVIRONMENTS, device="cuda") for _ in range(3))

for iteration in range(3):
    with torch.no_grad():
        for t in range(STEPS):
            observations[t].normal_()
            logits, values[t] = agent(observations[t])
            probabilities = logits.softmax(-1)
            actions[t] = torch.multinomial(probabilities, 1).squeeze(1)
            log_probs[t] = probabilities.gather(1, actions[t][:, None]).log().squeeze(1)
            rewards[t].uniform_()
        advantages = torch.zeros_like(rewards)
        carried = torch.zeros(ENVIRONMENTS, device="cuda")
        for t in reversed(range(STEPS - 1)):
            delta = rewards[t] + 0.99 * values[t + 1] - values[t]
            carried = delta + 0.99 * 0.95 * carried
            advantages[t] = carried
        returns = advantages + values
    for epoch in range(2):
        logits, value = agent(observations.flatten(0, 1))
        log_prob = logits.log_softmax(-1).gather(1, actions.view(-1, 1)).squeeze(1)
        ratio = (log_prob - log_probs.flatten()).exp()
        gain = advantages.flatten()
        policy_loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        value_loss = (value - returns.flatten()).square().mean()
        optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss).backward()
        optimizer.step()
