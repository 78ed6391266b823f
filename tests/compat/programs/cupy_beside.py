# SPDX-License-Identifier: MIT OR Apache-2.0
"""cupy: an array of 1 GiB, without torch's allocator."""

import cupy

x = cupy.zeros((1 << 28,), dtype=cupy.float32)
y = x + 1
cupy.cuda.Device().synchronize()
print(f"done, {cupy.get_default_memory_pool().total_bytes()} bytes")
