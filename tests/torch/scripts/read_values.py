# SPDX-License-Identifier: MIT OR Apache-2.0
"""Asks for values of device memory in many ways; prints what a GPU would print, a line for each question."""

import threading

import torch
from torch.distributions import Categorical, Normal


def tell(name, value):
    print(f"{name}: {value.tolist() if isinstance(value, torch.Tensor) else value}")


device = "cuda"
ids = torch.tensor([3, 1, 3, 2], device=device)
mask = torch.tensor([True, False, True, True, False], device=device)
large = torch.randn(5, 1024, 1024, device=device)

tell("arithmetic", (torch.arange(6, device=device) * 2).cumsum(0))
tell("transposed", torch.tensor([[1, 2], [3, 4]], device=device).t().cpu())
tell("cast", ids.float())
tell("nonzero", mask.nonzero().flatten())
tell("selected rows", tuple(large[mask].shape))
tell("masked_select", tuple(torch.masked_select(large[:, 0, 0], mask).shape))
tell("unique", torch.unique(ids))
tell("unique rows", torch.unique(torch.stack([ids, ids]), dim=0))
tell("unique_consecutive", torch.unique_consecutive(ids))
tell("repeat_interleave", torch.repeat_interleave(ids, ids))
tell("bincount", torch.bincount(ids))
sparse = torch.sparse_coo_tensor(torch.stack([ids, ids]), torch.ones(4, device=device), (4, 4), check_invariants=False)
tell("coalesced", tuple(sparse.coalesce().values().shape))
written = torch.zeros(5, device=device)
written[mask] = torch.tensor([1.0, 2.0, 3.0], device=device)
tell("written through a mask", written)
table = torch.zeros(4, 10, device=device)
table[:, 3] = torch.arange(4.0, device=device)
tell("a column", table[:, 3])
tell("beside the column", table[1])
# More rows than are looked at one by one.
rows = torch.zeros(2000, 2, dtype=torch.long, device=device)
rows[:, 0] = torch.arange(2000, device=device)
rows[:, 1] = 7
tell("columns of many rows", rows.sum(0))
chosen = torch.nn.functional.one_hot(torch.arange(4096, device=device) % 8).t()
tell("places in a column", tuple(torch.where(chosen[3])[0].shape))
tell("split by values", [len(part) for part in torch.split(torch.arange(6, device=device), [1, 2, 3])])
tell("equal", torch.equal(ids, ids.clone()))

# The stop flag of generate(): one side is known, the other is not.
unfinished = torch.ones(4, dtype=torch.long, device=device)
for length in range(1, 100):
    tokens = torch.randn(4, 50_000, device=device).argmax(-1)
    done = (tokens == -1) | torch.full((4,), length >= 7, device=device)
    unfinished = unfinished & ~done
    if unfinished.max() == 0:
        break
tell("stopped at", length)

# Checks that a healthy program passes, of values that are not computed.
loss = large.square().mean()
tell("loss is finite", bool(torch.isfinite(loss)))
tell("all finite", bool(torch.isfinite(large).all()))
tell("any nan", bool(torch.isnan(large).any()))
tell("reciprocal", loss.item() != 0 and 1 / loss.item() > 0)
Normal(large.mean(), large.std()).sample()
tell("sampled", tuple(Categorical(logits=torch.randn(64, 50_000, device=device)).sample().shape))

with torch.inference_mode():
    tell("inference mode", torch.ones(3, device=device) * 2)
    tell("operators made of others", torch.where(mask)[0].to(torch.int32).reshape(3, 1)[:, 0])
tell("vmap", torch.vmap(lambda one: one * 2)(torch.arange(3, device=device)))

torch.manual_seed(0)
first = torch.rand(1)
torch.manual_seed(0)
torch.randn(4, device=device)
torch.dropout(torch.ones(4, device=device), 0.5, True)
tell("the generator of the CPU stays", bool(first == torch.rand(1)))

results = []
thread = threading.Thread(target=lambda: results.append(torch.arange(5, device=device).sum().item()))
thread.start()
thread.join()
tell("in a thread", results)

try:
    torch.empty(1 << 45, device=device)
except torch.OutOfMemoryError as error:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    tell("frames of an error", len(frames) - frames.count("<tonnage>"))

try:
    large.requires_grad_().square().sum().backward(torch.ones(2, device=device))
except RuntimeError as error:
    trace = error.__traceback__
    while trace is not None:
        tell("a frame of a backward pass", trace.tb_frame.f_code.co_filename.rpartition("/")[2])
        trace = trace.tb_next

graph = torch.cuda.CUDAGraph()
static = torch.zeros(4, device=device)
with torch.cuda.graph(graph):
    after = static + 1
graph.replay()
tell("after a graph", tuple(after.cpu().shape))
