# SPDX-License-Identifier: MIT OR Apache-2.0
"""Calls libraries and the driver by name, as programs other than torch do, and prints what they answer as JSON."""

import ctypes
import json
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

import torch

cuda = ctypes.CDLL(None)
nvrtc = ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.split('.')[0]}")

SOURCE = b"""
extern "C" {
__device__ float table[10000];
__constant__ int three[3] = {1, 2, 3};
__device__ char one;
__global__ void kernel(float *out) { out[0] = table[threadIdx.x] + three[1] + one; }
}
"""


def check(status):
    assert status == 0, status


def versions():
    found = {}
    value = c_int()
    for name in ("cublasGetProperty", "cublasLtGetProperty"):
        parts = []
        for part in range(3):
            check(cuda[name](part, byref(value)))
            parts.append(value.value)
        found[name] = parts
    check(cuda.cublasGetVersion_v2(None, byref(value)))
    found["cublasGetVersion_v2"] = value.value
    cuda.cublasLtGetVersion.restype = c_size_t
    found["cublasLtGetVersion"] = cuda.cublasLtGetVersion()
    return found


def image(kind):
    program = c_void_p()
    check(nvrtc.nvrtcCreateProgram(byref(program), SOURCE, b"source.cu", 0, None, None))
    options = (c_char_p * 1)(b"--gpu-architecture=sm_90")
    check(nvrtc.nvrtcCompileProgram(program, 1, options))
    size = c_size_t()
    check(nvrtc[f"nvrtcGet{kind}Size"](program, byref(size)))
    code = ctypes.create_string_buffer(size.value)
    check(nvrtc[f"nvrtcGet{kind}"](program, code))
    return code


def variables(code):
    module, address, size = c_void_p(), c_uint64(), c_size_t()
    check(cuda.cuModuleLoadData(byref(module), code))
    found = {}
    for name in (b"table", b"three", b"one"):
        check(cuda.cuModuleGetGlobal_v2(byref(address), byref(size), module, name))
        found[name.decode()] = [size.value, address.value % 256]
        check(cuda.cuMemsetD8_v2(address, 7, size))
        back = (ctypes.c_ubyte * size.value)()
        check(cuda.cuMemcpyDtoH_v2(back, address, size))
        assert set(back) == {7}, name
    found["missing"] = cuda.cuModuleGetGlobal_v2(byref(address), byref(size), module, b"missing")
    check(cuda.cuModuleUnload(module))
    return found


def unknown_variable():
    """A constant that is larger than any size that the driver reports for an image which it cannot read."""
    module, address, size = c_void_p(), c_uint64(), c_size_t()
    check(cuda.cuModuleLoadData(byref(module), b"an image in another form"))
    check(cuda.cuModuleGetGlobal_v2(byref(address), byref(size), module, b"table"))
    data = ctypes.create_string_buffer(b"\1" * (8 << 20))
    check(cuda.cuMemcpyHtoD_v2(address, data, c_size_t(8 << 20)))
    return address.value % 256


def contexts():
    def current():
        context = c_void_p()
        check(cuda.cuCtxGetCurrent(byref(context)))
        return context.value

    seen, own = {}, c_void_p()

    def thread():
        seen["new thread"] = current()
        check(cuda.cuDevicePrimaryCtxRetain(byref(own), 0))
        seen["retained"] = current()
        seen["nothing to pop"] = cuda.cuCtxPopCurrent_v2(byref(c_void_p()))
        check(cuda.cuCtxSetCurrent(own))
        seen["set"] = current() == own.value
        popped = c_void_p()
        check(cuda.cuCtxPopCurrent_v2(byref(popped)))
        seen["popped"] = [popped.value == own.value, current()]
        check(cuda.cuCtxPushCurrent_v2(own))
        seen["pushed"] = current() == own.value
        check(cuda.cuCtxSetCurrent(None))
        seen["set to null"] = current()
        check(cuda.cudaFree(None))
        seen["runtime"] = current() == own.value

    runner = threading.Thread(target=thread)
    runner.start()
    runner.join()
    return seen


torch.zeros(1, device="cuda")
print(
    json.dumps(
        {
            "versions": versions(),
            "cubin": variables(image("CUBIN")),
            "ptx": variables(image("PTX")),
            "unknown": unknown_variable(),
            "contexts": contexts(),
        }
    )
)
