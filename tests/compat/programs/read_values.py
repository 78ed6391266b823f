# SPDX-License-Identifier: MIT OR Apache-2.0
"""What scripts do with values: divide, take logarithms, assert ranges, split by computed sizes, take a topk."""

import math

import torch

x = torch.rand(1000, device="cuda")
print(1 / x.sum().item() > 0, math.log(x.mean()) < 0)
ids = torch.randint(0, 100, (64,), device="cuda")
assert (ids >= 0).all() and (ids < 100).all()
sizes = torch.tensor([3, 5, 2], device="cuda")
parts = torch.split(torch.randn(10, 4, device="cuda"), sizes.tolist())
assert [len(part) for part in parts] == [3, 5, 2]
counts = torch.bincount(ids, minlength=100)
assert int(counts.sum()) == 64
values, places = torch.topk(counts, 5)
assert len(torch.unique(ids)) == int((counts > 0).sum())
order = torch.argsort(ids)
assert torch.equal(ids[order], torch.sort(ids).values)
print("done")
