"""CUDA graphs, side streams, memory pools, and the driver's own pools."""

import torch

static = torch.zeros(1024, 1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        warm = static @ static
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inside = (static @ static).relu()
    assert torch.cuda.is_current_stream_capturing()
assert not torch.cuda.is_current_stream_capturing()
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
assert inside.shape == (1024, 1024)

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
static.mul_(2)
end.record()
end.synchronize()
assert start.elapsed_time(end) > 0
assert end.query() and side.query()

pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    pooled = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
assert pinned.is_pinned()
block = pinned.to("cuda", non_blocking=True)
block.record_stream(side)
del block
torch.cuda.empty_cache()
print("capture ok", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
