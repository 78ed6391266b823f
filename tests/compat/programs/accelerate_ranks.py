# SPDX-License-Identifier: MIT OR Apache-2.0
"""Accelerate on several GPUs: an evaluation whose last batch is not full, metrics and objects of all ranks."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(mixed_precision="bf16")
size, rank = accelerator.num_processes, accelerator.process_index
examples = 8 * size + 3
data = TensorDataset(torch.arange(examples, dtype=torch.float32)[:, None].repeat(1, 512))
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 1))
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
for (batch,) in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
seen, names = [], []
for (batch,) in loader:
    seen += accelerator.gather_for_metrics(batch[:, 0]).tolist()
    names += accelerator.gather_for_metrics([f"example {int(one)}" for one in batch[:, 0]], use_gather_object=True)
assert sorted(seen) == list(range(examples)), seen
assert len(names) >= examples, names
total = accelerator.reduce(torch.tensor(rank + 1, device=accelerator.device), "sum").item()
assert total == size * (size + 1) // 2, total
accelerator.wait_for_everyone()
print(f"done, rank {rank} of {size}\n", end="", flush=True)
accelerator.end_training()
