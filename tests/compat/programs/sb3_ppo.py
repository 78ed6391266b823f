# SPDX-License-Identifier: MIT OR Apache-2.0
"""stable-baselines3: PPO on an environment written here."""

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        self.count = 0
        return np.zeros(8, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(8, 0.1, np.float32), float(action), self.count >= 50, False, {}


model = PPO("MlpPolicy", Walk(), n_steps=128, batch_size=64, n_epochs=2, device="cuda")
model.learn(256)
print(f"done, {model.num_timesteps} steps, {torch.cuda.max_memory_allocated()} bytes at most")
