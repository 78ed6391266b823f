# SPDX-License-Identifier: MIT OR Apache-2.0
"""Answers `tonnage attach` inside of a process that runs: its segments and blocks, and the holder of each block.

The text that imports the modules of the hook removes them again (`attach/inside.py`). The census runs no code of the
program (`holders`), and PyTorch reports its segments without a history.
"""

from __future__ import annotations

import gc
import json
import linecache
import os
import sys
import threading
import time
from typing import Any

# A snapshot holds up to this many of PyTorch's own stack frames for each block.
_FRAMES = 16
# The function that waits for a backward pass.
_BACKWARD = "_engine_run_backward"


class _Library:
    """In the place of the stand-in: keeps what a census reports."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, int, str]] = []
        keep = self.notes.append

        def note(kind: int, address: int, data: bytes, length: int) -> None:
            keep((kind, address, data.decode("utf-8", "replace")))

        # Plain functions, because the census gives them types of `ctypes`.
        self.tonnage_note = note
        self.tonnage_census_begin = lambda name, length: None
        self.tonnage_census_end = lambda name, length, walked: None
        self.tonnage_census_due = lambda percent: True


def answer(counts_only: bool) -> dict[str, Any]:
    """The reply to `tonnage attach`: with `counts_only` only the counters of PyTorch."""
    begun = time.perf_counter()
    found: dict[str, Any] = {
        "process_id": os.getpid(),
        "python": sys.version.split()[0],
        "main_thread": threading.current_thread() is threading.main_thread(),
    }
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        found["problem"] = "no_torch"
    elif not torch.cuda.is_initialized():
        # A query of a counter would initialize CUDA.
        found["problem"] = "no_device"
    else:
        found["torch"] = str(torch.__version__)
        found["devices"] = [_counters(torch, device) for device in range(torch.cuda.device_count())]
        if not counts_only:
            found["snapshot"] = _state(torch)
            found["backward"] = _in_backward()
            found["holders"] = _take_census(torch, bool(found["backward"]))
    found["seconds"] = time.perf_counter() - begun
    return found


def _counters(torch: Any, device: int) -> dict[str, Any]:
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    found = {"device": device, "allocated": allocated, "reserved": reserved}
    found["peak_allocated"] = torch.cuda.max_memory_allocated(device)
    if reserved:
        # The device has a context of this process, so that a query makes none.
        found["free"], found["total"] = torch.cuda.mem_get_info(device)
        found["name"] = torch.cuda.get_device_name(device)
    return found


def _state(torch: Any) -> dict[str, Any]:
    """Segments and blocks, without the events of a history, which may be long."""
    segments = torch.cuda.memory_snapshot()
    for segment in segments:
        segment.pop("frames", None)
        for block in segment["blocks"]:
            block.pop("history", None)
            if "frames" in block:
                block["frames"] = block["frames"][:_FRAMES]
    return {"segments": segments, "device_traces": []}


def _in_backward() -> bool:
    """Whether any thread waits for a backward pass, which frees graphs while they would be walked."""
    for frame in sys._current_frames().values():
        current: Any = frame
        while current is not None:
            if current.f_code.co_name == _BACKWARD:
                return True
            current = current.f_back
    return False


def _take_census(torch: Any, backward: bool) -> list[tuple[int, int, str]]:
    from tonnage_hook.torch.holders import Holders

    library = _Library()
    autograd = torch._C._autograd
    pushed = getattr(autograd, "_push_saved_tensors_default_hooks", None)
    lines = set(linecache.cache)
    collecting = gc.isenabled()
    try:
        make_holders: Any = Holders
        census = make_holders(torch, library)
        # An older torch does not report hooks on saved tensors. They may be there, and must not be run.
        census.hooked = not census.sees_saved
        census.take("attach", backward=backward)
    finally:
        if pushed is not None:
            autograd._push_saved_tensors_default_hooks = pushed
        for file in set(linecache.cache) - lines:
            del linecache.cache[file]
        if collecting:
            gc.enable()
    return library.notes


def write(path: str, counts_only: bool) -> None:
    """Writes the answer; the file appears once it is whole."""
    found = answer(counts_only)
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(found, file, default=str)
    os.rename(part, path)
