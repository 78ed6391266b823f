# SPDX-License-Identifier: MIT OR Apache-2.0
"""Arrays and tensors: numpy, safetensors and torch, where they are installed."""

import importlib.util
import os

if importlib.util.find_spec("numpy"):
    import numpy

    numpy.save("best.npy", numpy.arange(5))
    print(numpy.load("best.npy"))
    view = numpy.memmap("sparse", dtype="u1", mode="r+")
    view[:4] = 7
    view.flush()
    print(numpy.fromfile("sparse", dtype="u1", count=5))
    numpy.memmap("mapped", dtype="f4", mode="w+", shape=(4,))[:] = 1
    print(os.path.getsize("mapped"))
    numpy.savez("best.npz", a=view[:3])
    numpy.arange(3).tofile("best.pt")
    print(numpy.fromfile("best.pt", dtype="i8"))
if importlib.util.find_spec("torch"):
    import torch

    torch.save({"a": torch.ones(3)}, "best.pt")
    print(torch.load("best.pt"))
    print(torch.load("best.pt", mmap=True))
    if importlib.util.find_spec("safetensors"):
        from safetensors.torch import load_file, save_file

        save_file({"a": torch.ones(3)}, "model.safetensors")
        print(load_file("model.safetensors"))
