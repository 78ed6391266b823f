# SPDX-License-Identifier: MIT OR Apache-2.0
"""A kernel written in Triton, with an autotuner."""

import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (256, 1024)], key=["n"])
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


x = torch.rand(1 << 24, device="cuda")
y, out = torch.rand_like(x), torch.empty_like(x)
add[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
torch.cuda.synchronize()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
