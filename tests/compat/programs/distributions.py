# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch.distributions with their arguments checked, as is the default."""

import torch
from torch.distributions import Bernoulli, Beta, Categorical, Dirichlet, MultivariateNormal, Normal

logits = torch.nn.Linear(64, 10).cuda()(torch.randn(32, 64, device="cuda"))
zero, one = torch.zeros(32, 10, device="cuda"), torch.ones(32, 10, device="cuda")
for made in (
    Categorical(logits=logits),
    Categorical(probs=torch.softmax(logits, -1)),
    Normal(logits, one),
    Bernoulli(torch.sigmoid(logits)),
    Beta(one, one),
    Dirichlet(one),
    MultivariateNormal(zero, torch.eye(10, device="cuda")),
):
    sample = made.sample()
    made.log_prob(sample).sum()
    print(type(made).__name__, tuple(sample.shape))
print("done")
