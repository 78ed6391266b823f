"""A script that records its own history must get what it requested."""

import sys

import torch

torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.memory._record_memory_history(max_entries=100)
kept = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(5)]
torch.cuda.memory._dump_snapshot(sys.argv[1])
snapshot = torch.cuda.memory._snapshot()
actions = [entry["action"] for entry in snapshot["device_traces"][0]]
assert actions.count("alloc") == 5, actions
torch.cuda.memory._record_memory_history(enabled=None)
after = torch.empty(7 << 20, dtype=torch.uint8, device="cuda")
print("history ok")
