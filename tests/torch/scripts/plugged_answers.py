"""PyTorch's answers about memory with tonnage's allocator in the place of its own: true figures, or a way out."""

import os
import sys
import threading
import warnings

import torch

MIB = 1 << 20
keys = set(sys.argv[1].split(","))
kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
freed = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
del freed

# Every key of PyTorch's own allocator, with true figures.
stats = torch.cuda.memory_stats()
assert keys - set(stats) == set(), keys - set(stats)
expected = {
    "allocated_bytes.all.current": 3 * MIB,
    "allocated_bytes.all.peak": 8 * MIB,
    "allocated_bytes.all.allocated": 8 * MIB,
    "allocated_bytes.all.freed": 5 * MIB,
    "requested_bytes.all.allocated": 8 * MIB,
    "allocation.all.current": 1,
    "allocation.all.peak": 2,
    "allocation.all.allocated": 2,
    "allocation.all.freed": 1,
    "segment.all.current": 4,
    "num_device_alloc": 4,
    "inactive_split_bytes.all.current": 0,
}
for name, value in expected.items():
    assert stats[name] == value, (name, stats[name], value)
accelerator = torch.accelerator
assert accelerator.memory_stats() == stats
assert accelerator.memory_allocated() == torch.cuda.memory_allocated() == 3 * MIB
assert accelerator.memory_reserved() == torch.cuda.memory_reserved() == 8 * MIB
assert accelerator.max_memory_allocated() == 8 * MIB
assert accelerator.max_memory_reserved() == 8 * MIB
accelerator.reset_peak_memory_stats()
assert accelerator.max_memory_allocated() == 3 * MIB
accelerator.empty_cache()
assert accelerator.memory_reserved() == 4 * MIB
for reset in (torch.cuda.reset_accumulated_memory_stats, accelerator.reset_accumulated_memory_stats):
    torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] > 0
    reset()
    stats = torch.cuda.memory_stats()
    for name in ("allocated_bytes.all.allocated", "allocated_bytes.all.freed", "num_device_alloc"):
        assert stats[name] == 0, (name, stats[name])
    assert stats["allocated_bytes.all.current"] == 3 * MIB

assert torch.cuda.get_per_process_memory_fraction() == 1.0
torch.cuda.set_per_process_memory_fraction(0.5)
assert torch.cuda.get_per_process_memory_fraction() == 0.5
torch.cuda.set_per_process_memory_fraction(1.0)

# Settings of PyTorch's allocator are not taken in silence.
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
assert any("expandable_segments:True has no effect" in str(warning.message) for warning in caught), caught

# CUDA graph trees name the way out.
assert torch._C._cuda_isHistoryEnabled() is False
try:
    torch._C._cuda_getCheckpointState(0, torch.cuda.graph_pool_handle())
    raise AssertionError("a checkpoint")
except RuntimeError as error:
    assert "cudagraph_trees = False" in str(error), error

# A child frees what it inherited, whatever other threads of the parent do at the moment of the fork.
stop = threading.Event()


def churn():
    while not stop.is_set():
        torch.empty(4096, dtype=torch.uint8, device="cuda")


threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        del kept
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
print("every answer is true")
