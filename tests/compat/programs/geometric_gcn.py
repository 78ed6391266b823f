# SPDX-License-Identifier: MIT OR Apache-2.0
"""torch-geometric: GCN on 100,000 nodes and 1,000,000 edges; self loops are masked on the device."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import add_self_loops

nodes, edges = 100_000, 1_000_000
x, y = torch.randn(nodes, 256, device="cuda"), torch.randint(0, 40, (nodes,), device="cuda")
index = add_self_loops(torch.randint(0, nodes, (2, edges)), num_nodes=nodes)[0].cuda()
peaks = []
for loops in (True, False):
    torch.cuda.reset_peak_memory_stats()
    first, second = GCNConv(256, 256, add_self_loops=loops).cuda(), GCNConv(256, 40, add_self_loops=loops).cuda()
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    for _ in range(2):
        F.cross_entropy(second(F.relu(first(x, index)), index), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    peaks.append(torch.cuda.max_memory_allocated())
    del first, second, optimizer
# The same edges in both, so the peaks are close.
assert abs(peaks[0] / peaks[1] - 1) < 0.1, peaks
SAGEConv(256, 64).cuda()(x, index).sum().backward()
print(f"done, {max(peaks)} bytes at most")
