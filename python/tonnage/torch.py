# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tonnage allocator for PyTorch: one address space for all streams, pages that move to where they are needed.

    import tonnage.torch

    tonnage.torch.install()   # before anything is put on a GPU
    ...
    print(tonnage.torch.memory_stats())

A script that must not be changed is started with it: `python -m tonnage.torch train.py --its arguments`.

Plain PyTorch can load it too. It then tells it of neither `record_stream` nor CUDA graphs, so this is for programs with
one stream; a capture is refused:

    allocator = torch.cuda.memory.CUDAPluggableAllocator(tonnage.torch.library(), "tonnage_malloc", "tonnage_free")
    torch.cuda.memory.change_current_allocator(allocator)
"""

import argparse
import ctypes
import os
import runpy
import sys
import typing

import torch

__all__ = ["begin_step", "install", "is_installed", "library", "memory_stats", "reset_peak_memory_stats"]

# What PyTorch can be told beside malloc and free: the method that takes it, and our function.
_FUNCTIONS = {
    "set_reset_fn": "tonnage_empty_cache",
    "set_memory_fraction_fn": "tonnage_set_memory_fraction",
    "set_record_stream_fn": "tonnage_record_stream",
    "set_begin_allocate_to_pool": "tonnage_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "tonnage_end_allocate_to_pool",
    "set_release_pool": "tonnage_release_pool",
}

# Kept for as long as the process lives, because PyTorch frees with it until the end.
_installed: typing.Any = None


def library() -> str:
    """The shared library with the functions `tonnage_malloc` and `tonnage_free`."""
    from tonnage import _tonnage

    path = _tonnage.__file__
    if path is None:
        raise RuntimeError("the shared library of tonnage is not a file")
    return path


def is_installed() -> bool:
    """Whether PyTorch uses tonnage's allocator in this process."""
    return _installed is not None


def install(plan: "str | os.PathLike[str] | None" = None) -> None:
    """Lets PyTorch take its GPU memory from tonnage's allocator.

    It has to be called before the first use of CUDA in the process, and stays until the process ends. A second call
    does nothing. `torch.cuda.memory_allocated()` and the like then answer with this allocator's figures.

    `plan` is a file that `tonnage plan RECORDING --for-runtime` wrote: where the blocks of the program shall lie. A
    step ends with each step of an optimizer, or where `begin_step()` is called. A plan of another program costs time
    and nothing else.
    """
    global _installed
    if _installed is not None:
        return
    path = library()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "tonnage_malloc", "tonnage_free")
    functions = ctypes.CDLL(path)
    plugged = allocator.allocator()
    missing = [method for method in _FUNCTIONS if not hasattr(plugged, method)]
    if missing:
        raise RuntimeError(
            f"PyTorch {torch.__version__} cannot tell an allocator of record_stream and CUDA graphs "
            f"({missing[0]} is missing), so tonnage's would not be safe; use PyTorch 2.9 or newer"
        )
    for method, name in _FUNCTIONS.items():
        getattr(plugged, method)(ctypes.cast(getattr(functions, name), ctypes.c_void_p).value)
    if plan is not None:
        _set_plan(functions, os.fspath(plan))
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError(
            "PyTorch has used CUDA already, and its allocator cannot be changed any more; "
            "call tonnage.torch.install() first, before tensors are made and before torch.cuda is asked"
        ) from error
    functions.tonnage_complete()
    functions.tonnage_statistics_names.restype = ctypes.c_char_p
    functions.tonnage_statistics.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
    functions.tonnage_statistics.restype = ctypes.c_size_t
    _installed = (allocator, functions)
    _answer_for_torch()
    if plan is not None:
        from torch.optim import optimizer

        optimizer.register_optimizer_step_post_hook(lambda *_: begin_step())


def _set_plan(functions: ctypes.CDLL, path: str) -> None:
    with open(path, "rb") as file:
        text = file.read()
    functions.tonnage_set_plan.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    functions.tonnage_set_plan.restype = ctypes.c_int64
    line = functions.tonnage_set_plan(text, len(text))
    if line != 0:
        raise ValueError(
            f"{path}: line {line} is not understood; `tonnage plan RECORDING --for-runtime -o {path}` writes a plan"
        )


def begin_step() -> None:
    """Says that the program begins a step of what it repeats, for programs with a plan and without an optimizer."""
    if _installed is not None:
        _installed[1].tonnage_begin_step()


def memory_stats() -> dict[str, int]:
    """What the allocator has and what it did, exact to the byte.

    `requested_bytes` is what PyTorch asked for, `allocated_bytes` the blocks that hold it, `reserved_bytes` what is
    held from the GPU; each with `.current`, `.peak` (since `reset_peak_memory_stats`) and `.peak_ever`. A block that
    was freed while another stream used it counts as allocated until that stream is done. The rest are counts.
    """
    if _installed is None:
        raise RuntimeError("tonnage's allocator is not in use; call tonnage.torch.install() before CUDA is used")
    functions = _installed[1]
    names = functions.tonnage_statistics_names().decode().split()
    values = (ctypes.c_uint64 * len(names))()
    functions.tonnage_statistics(values, len(names))
    return dict(zip(names, values))


def reset_peak_memory_stats() -> None:
    """Begins `.peak` of the statistics anew; `.peak_ever` stays."""
    if _installed is None:
        raise RuntimeError("tonnage's allocator is not in use; call tonnage.torch.install() before CUDA is used")
    _installed[1].tonnage_reset_peaks()


def _answer_for_torch() -> None:
    """Lets `torch.cuda.memory_allocated()` and its like answer: PyTorch asks no plug-in for statistics, it raises."""
    torch._C._cuda_memoryStats = _torch_stats
    torch._C._cuda_resetPeakMemoryStats = lambda device: reset_peak_memory_stats()
    torch.cuda.memory_summary = torch.cuda.memory.memory_summary = _summary


def _torch_stats(device: int) -> dict[str, typing.Any]:
    """The statistics under PyTorch's names, as far as they mean the same: it has pools of small and large blocks."""
    stats = memory_stats()

    def level(name: str) -> dict[str, dict[str, int]]:
        return {"all": {"current": stats[f"{name}.current"], "peak": stats[f"{name}.peak"]}}

    return {
        "active_bytes": level("allocated_bytes"),
        "allocated_bytes": level("allocated_bytes"),
        "num_alloc_retries": stats["retries"],
        "num_ooms": stats["requests_refused"],
        "requested_bytes": level("requested_bytes"),
        "reserved_bytes": level("reserved_bytes"),
    }


def _summary(device: typing.Any = None, abbreviated: bool = False) -> str:
    """Takes the place of `torch.cuda.memory_summary`, whose rows are those of another allocator."""
    lines = [f"{name:35}{value:>20,}" for name, value in memory_stats().items()]
    return "\n".join(["tonnage's allocator", *lines])


def _main() -> None:
    """`python -m tonnage.torch [--plan FILE] SCRIPT …`: runs a script with the allocator."""
    from tonnage import torch as own

    parser = argparse.ArgumentParser(
        prog="python -m tonnage.torch", description="Runs a script with tonnage's allocator."
    )
    parser.add_argument("--plan", metavar="FILE", help="a plan of `tonnage plan RECORDING --for-runtime`")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    own.install(given.plan)
    sys.argv = [given.script, *given.arguments]
    # As Python does for a script: what lies beside it can be imported.
    sys.path[0] = given.script.rpartition("/")[0] or "."
    runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    _main()
