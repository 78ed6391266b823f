"""Several streams that hand tensors to each other with record_stream, captures and a pool in between."""

import random

import torch

random.seed(7)
MIB = 1 << 20
streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(4))]
held = []
for step in range(1500):
    stream = random.choice(streams)
    with torch.cuda.stream(stream):
        size = random.choice([700, 64 << 10, 900 << 10, 3 * MIB, 12 * MIB, 40 * MIB])
        held.append(torch.empty(size + random.randrange(4096), dtype=torch.uint8, device="cuda"))
    for other in random.sample(streams, random.randrange(3)):
        held[-1].record_stream(other)
    while len(held) > 40 or (held and random.random() < 0.45):
        held.pop(random.randrange(len(held)))
    if step % 400 == 399:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    pooled = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
del pooled
with torch.cuda.use_mem_pool(pool):
    again = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
del again, pool
torch.cuda.empty_cache()
print("peak allocated", torch.cuda.max_memory_allocated())
print("peak reserved", torch.cuda.max_memory_reserved())
