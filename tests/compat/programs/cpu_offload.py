# SPDX-License-Identifier: MIT OR Apache-2.0
"""Activations kept on the host between forward and backward pass (save_on_cpu), and weights moved there and back."""

import torch

model = torch.nn.Sequential(
    *[torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(8)]
).cuda()
x = torch.randn(4096, 4096, device="cuda")
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    loss = model(x).sum()
loss.backward()
del loss
model.zero_grad(set_to_none=True)
model.cpu()
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() == x.nbytes, torch.cuda.memory_allocated()
model.cuda()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
