# SPDX-License-Identifier: MIT OR Apache-2.0
"""Evolution strategies: a population of networks is evaluated at once, without gradients."""

import torch

POPULATION, INPUTS, HIDDEN, OUTPUTS, EPISODES = 128, 256, 1024, 16, 64
SIGMA, RATE = 0.05, 0.02


@torch.no_grad()
def main():
    first = torch.randn(INPUTS, HIDDEN, device="cuda") / INPUTS**0.5
    second = torch.randn(HIDDEN, OUTPUTS, device="cuda") / HIDDEN**0.5
    for generation in range(5):
        noise1 = torch.randn(POPULATION // 2, INPUTS, HIDDEN, device="cuda")
        noise2 = torch.randn(POPULATION // 2, HIDDEN, OUTPUTS, device="cuda")
        observations = torch.randn(EPISODES, INPUTS, device="cuda")
        fitness = []
        for sign in (1, -1):
            hidden = torch.tanh(torch.matmul(observations, first + sign * SIGMA * noise1))
            actions = torch.bmm(hidden, second + sign * SIGMA * noise2)
            fitness.append(-actions.square().mean((1, 2)))
        advantage = fitness[0] - fitness[1]
        advantage = advantage / (advantage.std() + 1e-8)
        first += RATE * torch.einsum("p,pio->io", advantage, noise1) / POPULATION
        second += RATE * torch.einsum("p,pio->io", advantage, noise2) / POPULATION
        del noise1, noise2, hidden, actions


main()
