# SPDX-License-Identifier: MIT OR Apache-2.0
"""accelerate's find_executable_batch_size: halves the batch at each out-of-memory error."""

import torch
from accelerate.utils import find_executable_batch_size

tried = []


@find_executable_batch_size(starting_batch_size=4096)
def train(batch):
    tried.append(batch)
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU()) for _ in range(16)]
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(batch * 64, 4096, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return batch


best = train()
print(f"done, {best} after {tried}, {torch.cuda.max_memory_allocated()} bytes at most")
