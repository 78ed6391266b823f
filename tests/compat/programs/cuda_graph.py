# SPDX-License-Identifier: MIT OR Apache-2.0
"""A training step captured in a CUDA graph and replayed."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
x, y = torch.randn(512, 2048, device="cuda"), torch.randn(512, 1024, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
for _ in range(5):
    x.copy_(torch.randn(512, 2048))
    graph.replay()
torch.cuda.synchronize()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
