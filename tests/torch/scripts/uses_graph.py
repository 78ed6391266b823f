# SPDX-License-Identifier: MIT OR Apache-2.0
"""Uses that no launch names: by a CUDA graph, and by a table of addresses on the device."""

import torch

MIB = 1 << 20


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


unused = block(12).fill_(1)
static = block(3).fill_(1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = static + 1
marker = block(5)
for _ in range(5):
    graph.replay()

target = block(7)
table = torch.tensor([target.data_ptr()]).cuda()
later = block(9)
table.add_(0)
