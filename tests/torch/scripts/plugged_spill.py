"""Memory that makes way when it runs short: a callback, then a tag without a holder. Checked from inside a dry run."""

import json
import sys

import torch

allocator = sys.modules["tonnage.torch"]
GIB = 1 << 30
allocator.allow_spill("state")


def block(gib):
    return torch.empty(int(gib * GIB), dtype=torch.uint8, device="cuda")


with allocator.hold("state"), allocator.tag("state"):
    state = block(8)
    small = torch.arange(4096, device="cuda")
address = state.data_ptr()
cache = [block(8)]
asked = []


def free_the_cache(needed):
    asked.append(needed)
    count = len(cache)
    cache.clear()
    return count * 8 * GIB


allocator.on_shortage(free_the_cache)
# The callback is enough.
other = block(12)
assert asked == [12 * GIB], asked
assert allocator.memory_stats()["requests_served_after_a_callback"] == 1
# It has nothing more, so memory without a holder makes way.
more = block(8)
stats = allocator.memory_stats()
assert stats["tags_spilled"] == stats["requests_served_after_a_spill"] == 1, stats
assert stats["paused_bytes_kept_on_host"] >= 8 * GIB - 4 * (1 << 20), stats
# It does not fit beside what took its memory, and then it does.
try:
    with allocator.hold("state"):
        raise AssertionError("there is no room")
except torch.OutOfMemoryError as error:
    print("refused:", error)
del more
with allocator.hold("state"):
    assert state.data_ptr() == address
    state[:4096].fill_(1)
    assert allocator.memory_stats()["paused_bytes"] == 0
    try:
        block(10)
        raise AssertionError("there is no room")
    except torch.OutOfMemoryError as error:
        print("refused:", error)
kinds = {event.kind for event in allocator.events()}
assert {"search_callbacks", "search_spill", "pause", "resume", "refused"} <= kinds, kinds
print("at the end", json.dumps(allocator.memory_stats()))
