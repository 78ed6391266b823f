# SPDX-License-Identifier: MIT OR Apache-2.0
"""The job that `tonnage doctor` runs dry: a small model on the GPU, and which libraries answer for CUDA."""

import ctypes
import json
import os
import sys

import torch

LIBRARIES = {
    "CUDA driver": "cuInit",
    "CUDA runtime": "cudaMalloc",
    "cuBLAS": "cublasCreate_v2",
    "cuBLASLt": "cublasLtCreate",
    "cuDNN": "cudnnCreate",
    "cuFFT": "cufftCreate",
    "cuSPARSE": "cusparseCreate",
    "cuSOLVER": "cusolverDnCreate",
    "cuRAND": "curandCreateGenerator",
    "NCCL": "ncclCommInitRank",
    "NVML": "nvmlInit_v2",
}


class Place(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def library_of(function):
    """The file that has a function, as the loader finds it for this process."""
    loaded, place = ctypes.CDLL(None), Place()
    try:
        address = ctypes.cast(getattr(loaded, function), ctypes.c_void_p)
    except AttributeError:
        return None
    return os.fsdecode(place.file) if loaded.dladdr(address, ctypes.byref(place)) and place.file else None


model = torch.nn.Linear(4, 4, device="cuda")
model(torch.ones(2, 4, device="cuda")).sum().backward()
libraries = []
for name, function in LIBRARIES.items():
    file = library_of(function)
    libraries.append({"name": name, "replaced": file is not None and "tonnage_standin" in os.path.basename(file)})
    libraries[-1]["file"] = file
found = {
    "python": sys.version.split()[0],
    "executable": sys.executable,
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "libraries": libraries,
}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(found, file)
