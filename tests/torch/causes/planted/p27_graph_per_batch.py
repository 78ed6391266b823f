# SPDX-License-Identifier: MIT OR Apache-2.0
"""Captures one CUDA graph for each batch size that the server may see."""

import os

import torch
from torch import nn

FIXED = os.environ.get("FIXED") == "1"
model = nn.Sequential(nn.Linear(1024, 8192), nn.GELU(), nn.Linear(8192, 8192), nn.GELU(), nn.Linear(8192, 16))
model = model.half().cuda().eval()
static_input = torch.zeros(16384, 1024, dtype=torch.half, device="cuda")
pool = torch.cuda.graph_pool_handle() if FIXED else None
graphs = {}


@torch.no_grad()
def capture(batch):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):  # <- here
        output = model(static_input[:batch])
    graphs[batch] = graph, output


with torch.no_grad():
    model(static_input[:8])
torch.cuda.synchronize()
for batch in (16384, 12288, 8192, 4096):
    capture(batch)


def serve(rows):
    batch = min(size for size in graphs if size >= len(rows))
    graph, output = graphs[batch]
    static_input[: len(rows)].copy_(rows)
    graph.replay()
    return output[: len(rows)].clone()


for count in (3000, 9000, 16000):
    print(serve(torch.randn(count, 1024, device="cuda").half()).shape)
