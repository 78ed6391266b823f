"""Tensors that give their memory back for a while, and a snapshot of all that: checked from inside a dry run."""

import json
import sys
import threading

import torch

allocator = sys.modules["tonnage.torch"]
MIB = 1 << 20


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def reserved():
    return torch.cuda.memory_reserved() // MIB


with allocator.tag("weights"):
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, device="cuda") for _ in range(8)])
    with allocator.tag("cache"):
        cache = [block(50) for _ in range(4)]
other = block(3)
addresses = [tensor.data_ptr() for tensor in [*model.parameters(), *cache, other]]
live, held = torch.cuda.memory_allocated(), reserved()
assert held == 32 + 200 + 4, held

# The cache: nothing else lies on its pages but where it begins and ends.
given = allocator.pause("cache")
assert given in (198 * MIB, 200 * MIB), given
assert reserved() == held - given // MIB and torch.cuda.memory_allocated() == live
assert allocator.memory_stats()["paused_bytes"] == given
assert allocator.pause("cache") == 0, "it is paused already"

# Its memory is used for something else, and then it does not fit any more.
free = torch.cuda.mem_get_info()[0]
torch.cuda.set_per_process_memory_fraction((held + 4) * MIB / torch.cuda.get_device_properties(0).total_memory)
large = block(120)
try:
    allocator.resume("cache")
    raise AssertionError("there is no room")
except torch.OutOfMemoryError as error:
    print("refused:", error)
assert allocator.memory_stats()["paused_bytes"] == given
del large
torch.cuda.set_per_process_memory_fraction(1.0)
assert allocator.resume("cache") == given and allocator.resume("cache") == 0
assert reserved() <= held + 4

# Weights are kept on the host meanwhile. One is freed while they are paused.
kept = allocator.pause("weights", keep=True)
assert kept in (32 * MIB, 30 * MIB), kept
assert allocator.memory_stats()["paused_bytes_kept_on_host"] == kept
model[3].weight = torch.nn.Parameter(block(4).view(torch.float32).view(1024, 1024))
# Its whole pages; its neighbours lie on those at its ends.
assert kept - allocator.memory_stats()["paused_bytes"] in (2 * MIB, 4 * MIB)
allocator.resume("weights")
assert allocator.memory_stats()["paused_bytes"] == 0
assert allocator.memory_stats()["paused_bytes_kept_on_host"] == 0
after = [tensor.data_ptr() for tensor in [*model.parameters(), *cache, other]]
changed = [number for number, pair in enumerate(zip(addresses, after)) if pair[0] != pair[1]]
assert changed == [6], changed
model(torch.randn(4, 1024, device="cuda")).sum().backward()

# A thread has its own tag, and a graph's memory has none.
with allocator.tag("thread"):
    mine = []
    worker = threading.Thread(target=lambda: mine.append(block(8)))
    worker.start()
    worker.join()
    static = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static + 1
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            static.add_(1)
            allocator.pause("thread")
        raise AssertionError("paused in a capture")
    except RuntimeError as error:
        print("refused:", str(error).splitlines()[0])
# The tensor of this thread has one whole page or two; the other one's has three or four.
assert allocator.pause("thread") in (2 * MIB, 4 * MIB)
graph.replay()

kinds = {event.kind for event in allocator.events()}
assert {"alloc", "free", "map", "unmap", "pause", "resume", "search_pages"} <= kinds, kinds
try:
    block(30 << 10)
except torch.OutOfMemoryError:
    pass
assert allocator.events()[-1].kind == "refused"
numbers = [event.number for event in allocator.events()]
assert numbers == list(range(len(numbers)))
allocator.dump_snapshot(sys.argv[1])
print("at the end", json.dumps(allocator.memory_stats()))
