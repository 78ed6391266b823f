# SPDX-License-Identifier: MIT OR Apache-2.0
"""What scripts ask of the device: properties, counters, free memory, and what NVML knows."""

import torch

properties = torch.cuda.get_device_properties(0)
free, total = torch.cuda.mem_get_info()
assert total == properties.total_memory and 0 < free < total
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() == 1 << 30
assert "Allocated memory" in torch.cuda.memory_summary()
print(properties.name, properties.major, properties.minor, properties.multi_processor_count)
print(
    "NVML:",
    torch.cuda.utilization(),
    torch.cuda.temperature(),
    torch.cuda.power_draw(),
    torch.cuda.clock_rate(),
    torch.cuda.memory_usage(),
)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
