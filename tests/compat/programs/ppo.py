# SPDX-License-Identifier: MIT OR Apache-2.0
"""One update of PPO in the style of CleanRL: a convolutional policy, 1,024 frames, minibatches by permutation."""

import torch
from torch import nn
from torch.distributions.categorical import Categorical

body = nn.Sequential(
    nn.Conv2d(4, 32, 8, 4),
    nn.ReLU(),
    nn.Conv2d(32, 64, 4, 2),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, 1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 7 * 7, 512),
    nn.ReLU(),
).cuda()
actor, critic = nn.Linear(512, 6).cuda(), nn.Linear(512, 1).cuda()
parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
frames = torch.randint(0, 256, (1024, 4, 84, 84), dtype=torch.uint8, device="cuda")
with torch.no_grad():
    old = Categorical(logits=actor(body(frames / 255.0)))
    actions = old.sample()
    before = old.log_prob(actions)
advantages = torch.randn(1024, device="cuda")
fractions = []
for _ in range(4):
    for index in torch.randperm(1024, device="cuda").split(256):
        hidden = body(frames[index] / 255.0)
        new = Categorical(logits=actor(hidden))
        ratio = (new.log_prob(actions[index]) - before[index]).exp()
        fractions.append(((ratio - 1.0).abs() > 0.2).float().mean().item())
        part = advantages[index]
        part = (part - part.mean()) / (part.std() + 1e-8)
        loss = torch.max(-part * ratio, -part * ratio.clamp(0.8, 1.2)).mean()
        loss = loss - 0.01 * new.entropy().mean() + 0.5 * critic(hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
print(f"done, {len(fractions)} minibatches, {torch.cuda.max_memory_allocated()} bytes at most")
