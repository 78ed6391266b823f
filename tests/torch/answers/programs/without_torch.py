# SPDX-License-Identifier: MIT OR Apache-2.0
"""Asks the driver for memory itself; torch is not imported. The argument is how many times 1 GiB."""

import ctypes
import sys

driver = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
for _ in range(int(sys.argv[1])):
    code = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30))
    if code:
        sys.exit(f"cuMemAlloc: error {code}")
