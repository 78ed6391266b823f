# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints what torch.compile makes of modules: a graph break, hooks, `Module.compile`. Runs with and without a GPU."""

import torch
import torch._dynamo as dynamo
from torch import nn

if torch.cuda.is_available():
    torch.ones(1, device="cuda")
graphs = []


def backend(graph, inputs):
    graphs.append([getattr(node.target, "__name__", node.target) for node in graph.graph.nodes])
    return graph.forward


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = self.inner(x)
        dynamo.graph_break()
        return self.inner(x).relu()


x = torch.randn(2, 8)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), Broken(), nn.Linear(8, 8))
compiled = torch.compile(model, backend=backend)
for _ in range(3):
    compiled(x).sum().backward()

whole = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
whole.compile(backend=backend)
for _ in range(2):
    whole(x)

hooked = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
hooked[0].register_forward_hook(lambda module, arguments, result: result * 3)
hooked = torch.compile(hooked, backend=backend)
for _ in range(2):
    hooked(x)


@torch.compile(backend=backend)
def together(x):
    return whole(model(x)) * 2


for _ in range(2):
    together(x)

# Eager code beside it.
if torch.cuda.is_available():
    eager = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
    eager(x.cuda()).sum().backward()

for graph in graphs:
    print("graph", *graph)
print("frames", dict(dynamo.utils.counters["frames"]))
print("breaks", sum(dynamo.utils.counters["graph_break"].values()))
