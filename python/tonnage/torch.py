# SPDX-License-Identifier: MIT OR Apache-2.0
"""The tonnage allocator for PyTorch: one address space for all streams, pages that move to where they are needed.

    import tonnage.torch

    tonnage.torch.install()   # before anything is put on a GPU
    ...
    print(tonnage.torch.memory_stats())

A script that must not be changed is started with it: `python -m tonnage.torch train.py --its arguments`, and a module
by `python -m tonnage.torch -m package.train --its arguments`.

Plain PyTorch can load it too. It then reports neither `record_stream` nor CUDA graphs to it, so this is for programs
with one stream; a capture is refused:

    allocator = torch.cuda.memory.CUDAPluggableAllocator(tonnage.torch.library(), "tonnage_malloc", "tonnage_free")
    torch.cuda.memory.change_current_allocator(allocator)
"""

import argparse
import contextlib
import ctypes
import os
import pickle
import re
import runpy
import sys
import tempfile
import typing
import warnings

import torch

__all__ = [
    "Event",
    "allow_spill",
    "begin_step",
    "dump_snapshot",
    "events",
    "hold",
    "install",
    "is_installed",
    "library",
    "memory_stats",
    "on_shortage",
    "pause",
    "reset_peak_memory_stats",
    "resume",
    "snapshot",
    "tag",
]

# The hooks of PyTorch beside malloc and free: the method that takes it, and our function.
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
# A function that is called when memory runs short; those of the program are kept as long as the process lives.
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)
_callbacks: list[typing.Any] = []
# Whether anything was ever paused: a snapshot cannot show it.
_paused_once = False
# The counts when `torch.cuda.reset_accumulated_memory_stats()` was called last.
_counted_before: dict[str, int] = {}


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


def install(
    plan: "str | os.PathLike[str] | None" = None,
    events: int = 65536,
    tenant: "str | None" = None,
    quota: "int | str | None" = None,
) -> None:
    """Lets PyTorch take its GPU memory from tonnage's allocator.

    It has to be called before the first use of CUDA in the process, and stays until the process ends. A second call
    does nothing. `torch.cuda.memory_allocated()` and the like then answer with this allocator's figures.

    `plan` is a file that `tonnage plan RECORDING --for-runtime` wrote: where the blocks of the program shall lie. A
    step ends with each step of an optimizer, or where `begin_step()` is called. A plan of another program costs time
    and nothing else.

    `events` is how many of the last events are kept for `events()`, rounded up to a power of two: 32 bytes each.

    `tenant` and `quota` share the GPU with other processes of the same user that have them too. `tenant` is a name for
    this process, `quota` the memory that it may hold: bytes, or a text such as "8GiB". A tensor above the quota raises
    `torch.OutOfMemoryError` here and nowhere else. The first tensor raises `RuntimeError` if the name is in use, or if
    the quotas of all processes are more than the GPU has. A process that ends, however it ends, leaves its quota to
    others. CUDA's context and memory of other libraries do not count.
    """
    global _installed
    if (tenant is None) != (quota is None):
        raise ValueError("tenant and quota belong together: install(tenant='eval', quota='8GiB')")
    if _installed is not None:
        if tenant is not None:
            raise RuntimeError("tonnage's allocator is installed already; give tenant and quota to the first install()")
        return
    held_to = None if quota is None else _bytes(quota)
    path = library()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "tonnage_malloc", "tonnage_free")
    functions = ctypes.CDLL(path)
    plugged = allocator.allocator()
    missing = [method for method in _FUNCTIONS if not hasattr(plugged, method)]
    if missing:
        raise RuntimeError(
            f"PyTorch {torch.__version__} cannot notify an allocator of record_stream and CUDA graphs "
            f"({missing[0]} is missing), so tonnage's would not be safe; use PyTorch 2.9 or newer"
        )
    for method, name in _FUNCTIONS.items():
        getattr(plugged, method)(ctypes.cast(getattr(functions, name), ctypes.c_void_p).value)
    if plan is not None:
        _set_plan(functions, os.fspath(plan))
    if tenant is not None and held_to is not None:
        _share(functions, tenant, held_to)
    if events < 0:
        raise ValueError(f"events={events}: a number of events is not negative")
    functions.tonnage_keep_events.argtypes = [ctypes.c_size_t]
    functions.tonnage_keep_events(events)
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError(
            "PyTorch has used CUDA already, and its allocator cannot be changed any more; "
            "call tonnage.torch.install() first, before tensors are made and before torch.cuda is used"
        ) from error
    functions.tonnage_complete()
    functions.tonnage_event_names.restype = ctypes.c_char_p
    functions.tonnage_memory_fraction.restype = ctypes.c_double
    for name in ("tonnage_snapshot", "tonnage_statistics"):
        function = getattr(functions, name)
        function.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
        function.restype = ctypes.c_int64
    for name in ("tonnage_begin_step", "tonnage_reset_peaks"):
        getattr(functions, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        getattr(functions, name).restype = ctypes.c_int64
    functions.tonnage_tag.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    functions.tonnage_tag.restype = ctypes.c_uint16
    functions.tonnage_set_tag.argtypes = [ctypes.c_uint16]
    functions.tonnage_set_tag.restype = ctypes.c_uint16
    functions.tonnage_pause.argtypes = [ctypes.c_uint16, ctypes.c_bool, ctypes.c_char_p, ctypes.c_size_t]
    functions.tonnage_pause.restype = ctypes.c_int64
    functions.tonnage_resume.argtypes = [ctypes.c_uint16, ctypes.c_char_p, ctypes.c_size_t]
    functions.tonnage_resume.restype = ctypes.c_int64
    functions.tonnage_allow_spill.argtypes = [ctypes.c_uint16, ctypes.c_char_p, ctypes.c_size_t]
    functions.tonnage_allow_spill.restype = ctypes.c_int64
    functions.tonnage_hold.argtypes = [ctypes.c_uint16, ctypes.c_char_p, ctypes.c_size_t]
    functions.tonnage_hold.restype = ctypes.c_int64
    functions.tonnage_unhold.argtypes = [ctypes.c_uint16]
    functions.tonnage_unhold.restype = None
    functions.tonnage_on_shortage.argtypes = [_CALLBACK]
    functions.tonnage_on_shortage.restype = None
    functions.tonnage_statistics_names.restype = ctypes.c_char_p
    _installed = (allocator, functions)
    _answer_for_torch()
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if os.environ.get(variable):
            _warn_of_settings(f"{variable}={os.environ[variable]}")
    if plan is not None:
        from torch.optim import optimizer

        optimizer.register_optimizer_step_post_hook(lambda *_: begin_step())


def _set_plan(functions: ctypes.CDLL, path: str) -> None:
    with open(path, "rb") as file:
        text = file.read()
    functions.tonnage_set_plan.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    functions.tonnage_set_plan.restype = ctypes.c_int64
    try:
        _answer(functions.tonnage_set_plan, text, len(text))
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}; `tonnage plan RECORDING --for-runtime -o {path}` writes a plan") from None


def _bytes(size: "int | str") -> int:
    """A number of bytes, or a text such as "8GiB" or "500 MB"."""
    if isinstance(size, int):
        number, unit = float(size), "B"
    else:
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?i?)B\s*", size)
        if found is None:
            raise ValueError(f"quota={size!r}: write a size such as '8GiB' or '500MiB'")
        number, unit = float(found[1]), found[2].upper()
    if number <= 0:
        raise ValueError(f"quota={size!r}: a quota is more than 0 bytes")
    base = 1024 if unit.endswith("I") else 1000
    return int(number * base ** " KMGT".index(unit[0] if unit and unit != "B" else " "))


def _share(functions: ctypes.CDLL, tenant: str, quota: int) -> None:
    folder = os.environ.get("TONNAGE_SHARE_DIR") or os.path.join(tempfile.gettempdir(), f"tonnage-gpus-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    state = os.stat(folder)
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise RuntimeError(
            f"{folder} belongs to another user, or others may write to it; remove it, or set TONNAGE_SHARE_DIR to a "
            "folder of your own"
        )
    path, name = os.fsencode(folder), tenant.encode()
    size, text = ctypes.c_size_t, ctypes.c_char_p
    functions.tonnage_share.argtypes = [text, size, text, size, ctypes.c_uint64, text, size]
    functions.tonnage_share.restype = ctypes.c_int64
    _answer(functions.tonnage_share, path, len(path), name, len(name), quota)


def begin_step() -> None:
    """Says that the program begins a step of what it repeats, for programs with a plan and without an optimizer."""
    if _installed is not None:
        _answer(_installed[1].tonnage_begin_step)


@contextlib.contextmanager
def tag(name: str) -> "typing.Iterator[None]":
    """Tensors that this thread puts on the GPU inside of the block have the name, so that they can be paused.

    The thread that runs a backward pass is another one: gradients that it makes have no tag. Memory of CUDA graphs has
    none either.
    """
    functions = _functions()
    before = functions.tonnage_set_tag(_tag(name))
    try:
        yield
    finally:
        functions.tonnage_set_tag(before)


def _tag(name: str) -> int:
    text = name.encode()
    if not text:
        raise ValueError("a tag has a name")
    number: int = _functions().tonnage_tag(text, len(text))
    if number == 0:
        raise RuntimeError("there are 65,535 tags already")
    return number


def pause(name: str, keep: bool = False) -> int:
    """Gives the memory of tensors with a tag back to the GPU, and keeps the addresses. Returns the freed bytes.

    Until `resume(name)` no thread may read or write the tensors. With `keep` their contents are copied to memory of the
    host, and are there again afterwards; otherwise they are lost. All work on the GPU is waited for. Memory comes back
    in pages, of 2 MiB as a rule: a page that something else lies on too stays. Tensors may be freed while they are
    paused.
    """
    global _paused_once
    given: int = _answer(_functions().tonnage_pause, _tag(name), keep)
    _paused_once |= given > 0
    return given


def resume(name: str) -> int:
    """Brings memory back to tensors with a tag, at the same addresses. Returns the bytes.

    If there is not enough memory, `torch.OutOfMemoryError` reports how much is missing, and all of it stays paused.
    """
    return _answer(_functions().tonnage_resume, _tag(name))


def allow_spill(name: str) -> None:
    """Says that what has a tag may be spilled when memory runs short: it is copied to memory of the host, others get
    its memory. The addresses stay.

    From now on those tensors may be read and written only inside of `hold(name)`. The tag that was held longest ago is
    spilled first. Nothing is spilled while a CUDA graph is captured.
    """
    global _paused_once
    _answer(_functions().tonnage_allow_spill, _tag(name))
    _paused_once = True


@contextlib.contextmanager
def hold(name: str) -> "typing.Iterator[None]":
    """Inside of the block, tensors with a tag have their memory and are not spilled. Spilled tensors come back first.
    If there is not enough memory, other tags that no thread holds make way; else `torch.OutOfMemoryError` is raised.

    Work that was launched inside of the block may go on after it: it is waited for before something is spilled.
    """
    functions = _functions()
    number = _tag(name)
    _answer(functions.tonnage_hold, number)
    try:
        yield
    finally:
        functions.tonnage_unhold(number)


def on_shortage(callback: "typing.Callable[[int], int]") -> None:
    """Calls a function before a request is refused, with the requested bytes. It frees tensors that the program can do
    without, and returns how many bytes that was; then the request is made again. Functions are called in the order in
    which they were named here, on the requesting thread, and are never forgotten. An exception counts as 0.
    """

    def call(needed: int) -> int:
        try:
            return max(int(callback(needed)), 0)
        except Exception:
            sys.excepthook(*sys.exc_info())
            return 0

    function = _CALLBACK(call)
    _callbacks.append(function)
    _functions().tonnage_on_shortage(function)


def _answer(function: typing.Any, *arguments: typing.Any) -> int:
    """Calls a function that returns a number, or a negative one and writes why."""
    message = ctypes.create_string_buffer(4096)
    answer: int = function(*arguments, message, len(message))
    if answer < 0:
        error = torch.OutOfMemoryError if answer == -2 else RuntimeError
        raise error(message.value.decode(errors="replace"))
    return answer


def _functions() -> ctypes.CDLL:
    if _installed is None:
        raise RuntimeError("tonnage's allocator is not in use; call tonnage.torch.install() before CUDA is used")
    functions: ctypes.CDLL = _installed[1]
    return functions


def memory_stats() -> dict[str, int]:
    """The memory and the counters of the allocator, exact to the byte.

    `requested_bytes` is what PyTorch requested, `allocated_bytes` the blocks that hold it, `reserved_bytes` what is
    held from the GPU; each with `.current`, `.peak` (since `reset_peak_memory_stats`) and `.peak_ever`. A block that
    was freed while another stream used it counts as allocated until that stream is done. `paused_bytes` are allocated
    and not reserved. `.total` is the sum of all blocks that were ever handed out. The rest are counts.
    """
    functions = _functions()
    names = functions.tonnage_statistics_names().decode().split()
    values = (ctypes.c_uint64 * len(names))()
    _answer(functions.tonnage_statistics, values, len(names))
    return dict(zip(names, values))


def reset_peak_memory_stats() -> None:
    """Begins `.peak` of the statistics anew; `.peak_ever` stays."""
    _answer(_functions().tonnage_reset_peaks)


class Event(typing.NamedTuple):
    """Something that the allocator did."""

    number: int
    """Its place among all events of the process, from 0."""
    kind: str
    """`alloc`, `free`; `free_requested` and `free_completed` of a block that another stream still used; `map` and
    `unmap` of memory at addresses, and `move` after those of memory that went from one to the other; `pause` and
    `resume` of the memory of blocks; `search_…`, the steps that were taken for a request that no free block could
    serve, and `refused` if none of them helped, with what the GPU had free as address."""
    address: int
    bytes: int
    """As requested where it is about a block or a request; whole pages where it is about memory."""
    stream: int


def events() -> list[Event]:
    """The last events of the allocator, the oldest first. Their order is exact; they have no times."""
    return _read()[1]


def _read() -> tuple[list[tuple[int, ...]], list[Event]]:
    """Every block as address, bytes, bytes requested, state and stream, and the last events, of the same moment."""
    functions = _functions()
    names = functions.tonnage_event_names().decode().split()
    room = 0
    while True:
        values = (ctypes.c_uint64 * room)()
        needed = _answer(functions.tonnage_snapshot, values, room)
        if needed <= room:
            break
        # Other threads go on meanwhile.
        room = needed + needed // 8
    if needed == 0:
        return [], []
    rows = list(zip(*[iter(values[2:needed])] * 5))
    blocks, kept = rows[: values[0]], rows[values[0] :]
    return blocks, [Event(number, names[kind], *rest) for number, kind, *rest in kept]


_STATES = ("active_allocated", "active_pending_free", "inactive")
_ACTIONS = {
    "alloc": ("alloc",),
    "free": ("free_requested", "free_completed"),
    "free_requested": ("free_requested",),
    "free_completed": ("free_completed",),
    "map": ("segment_map",),
    "unmap": ("segment_unmap",),
}


def snapshot() -> dict[str, typing.Any]:
    """The current allocations and the last events, in the form of `torch.cuda.memory._snapshot()`.

    A segment is a range of memory that is mapped without a hole; all streams share them, so the stream of a segment is
    0 and means nothing. Events have no times, and blocks have no lines: PyTorch does not pass the
    requester to a plugged allocator.
    """
    device = _functions().tonnage_device()
    blocks, kept = _read()
    nothing: list[typing.Any] = []
    trace: list[dict[str, typing.Any]] = []
    for event in kept:
        if event.kind == "refused":
            entry = {"action": "oom", "size": event.bytes, "stream": event.stream, "device_free": event.address}
            trace.append({**entry, "frames": nothing})
        for action in _ACTIONS.get(event.kind, ()):
            stream = 0 if action.startswith("segment") else event.stream
            entry = {"action": action, "addr": event.address, "size": event.bytes, "stream": stream}
            trace.append({**entry, "frames": nothing})
    settings = {"allocator": "tonnage", "torch_version": str(torch.__version__)}
    return {
        "segments": _segments(blocks, device),
        "device_traces": [[] for _ in range(device)] + [trace],
        "allocator_settings": {**settings, "paused": _paused_once},
        "external_annotations": [],
    }


def _segments(blocks: list[tuple[int, ...]], device: int) -> list[dict[str, typing.Any]]:
    segments: list[dict[str, typing.Any]] = []
    end = None
    for address, size, requested, state, _ in blocks:
        if address != end:
            segments.append(
                {
                    "device": device,
                    "address": address,
                    "total_size": 0,
                    "allocated_size": 0,
                    "active_size": 0,
                    "requested_size": 0,
                    "stream": 0,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": True,
                    "frames": [],
                    "blocks": [],
                }
            )
        segment, end = segments[-1], address + size
        segment["total_size"] += size
        segment["allocated_size"] += size if state == 0 else 0
        segment["active_size"] += size if state < 2 else 0
        segment["requested_size"] += requested
        segment["blocks"].append(
            {
                "address": address,
                "size": size,
                "requested_size": requested,
                "state": _STATES[state],
                "frames": [],
            }
        )
    return segments


def dump_snapshot(path: "str | os.PathLike[str]") -> None:
    """Writes `snapshot()` to a file that https://pytorch.org/memory_viz and tonnage open."""
    taken = snapshot()
    with open(path, "wb") as file:
        pickle.dump(taken, file, protocol=4)


def _answer_for_torch() -> None:
    """Lets `torch.cuda.memory_allocated()` and its like answer. PyTorch queries no plugin: it raises in `torch.cuda`,
    and answers 0 in `torch.accelerator`.
    """
    functions = {
        "_cuda_memoryStats": _torch_stats,
        "_cuda_resetPeakMemoryStats": lambda device: reset_peak_memory_stats(),
        "_cuda_resetAccumulatedMemoryStats": lambda device: _forget_counts(),
        "_cuda_getMemoryFraction": lambda device: _functions().tonnage_memory_fraction(),
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_getCheckpointState": _refuse_checkpoint,
        "_cuda_setCheckpointPoolState": _refuse_checkpoint,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_emptyCache": torch._C._cuda_emptyCache,
        "_accelerator_getDeviceStats": _torch_stats,
        "_accelerator_resetPeakStats": lambda device: reset_peak_memory_stats(),
        "_accelerator_resetAccumulatedStats": lambda device: _forget_counts(),
        "_accelerator_setAllocatorSettings": _warn_of_settings,
        "_cuda_cudaCachingAllocator_set_allocator_settings": _warn_of_settings,
    }
    for name, function in functions.items():
        # Releases of PyTorch differ in what they have.
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
    torch.cuda.memory_summary = torch.cuda.memory.memory_summary = _summary


def _warn_of_settings(settings: str) -> None:
    warnings.warn(
        f"{settings} has no effect: it is for PyTorch's allocator, and this process uses tonnage's, which takes no "
        "settings. Remove it, or run without tonnage.torch.install()",
        RuntimeWarning,
        stacklevel=3,
    )


def _refuse_checkpoint(*_: typing.Any) -> typing.NoReturn:
    raise RuntimeError(
        "tonnage: torch.compile(mode='reduce-overhead') keeps its CUDA graphs in trees, which need checkpoints of a "
        "pool that only PyTorch's own allocator has. Set torch._inductor.config.triton.cudagraph_trees = False, so "
        "that each graph has its own pool, or compile without mode='reduce-overhead'"
    )


_POOLS = ("all", "small_pool", "large_pool")


def _torch_stats(device: int) -> dict[str, typing.Any]:
    """The statistics under PyTorch's names: every one that its own allocator has.

    A segment is a page of memory. Blocks are not split off segments, there are no pools of small and large blocks, and
    no blocks that are too large to be split: these figures are 0. A block that waits for a stream counts as allocated.
    A GPU that is not served has nothing.
    """
    stats = memory_stats()
    if device != _functions().tonnage_device():
        stats = dict.fromkeys(stats, 0)
    page = stats["page_bytes"] or 1
    since = {name: count - _counted_before.get(name, 0) for name, count in _counts(stats).items()}
    nothing = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}

    def level(name: str, current: int, peak: int) -> dict[str, dict[str, int]]:
        figures = {"current": current, "peak": peak}
        totals = {total: since[f"{name}.{total}"] for total in ("allocated", "freed")}
        return {pool: {**figures, **totals} if pool == "all" else dict(nothing) for pool in _POOLS}

    def of_bytes(name: str) -> dict[str, dict[str, int]]:
        return level(name, stats[f"{name}.current"], stats[f"{name}.peak"])

    blocks = level("allocation", stats["blocks"], stats["blocks.peak"])
    pages = [stats[f"reserved_bytes.{name}"] // page for name in ("current", "peak")]
    return {
        "active": blocks,
        "active_bytes": of_bytes("allocated_bytes"),
        "allocated_bytes": of_bytes("allocated_bytes"),
        "allocation": blocks,
        "inactive_split": {pool: dict(nothing) for pool in _POOLS},
        "inactive_split_bytes": {pool: dict(nothing) for pool in _POOLS},
        "max_split_size": -1,
        "num_alloc_retries": since["num_alloc_retries"],
        "num_device_alloc": since["segment.allocated"],
        "num_device_free": since["segment.freed"],
        "num_oom_rejections": 0,
        "num_ooms": since["num_ooms"],
        "num_sync_all_streams": since["num_alloc_retries"],
        "oversize_allocations": dict(nothing),
        "oversize_segments": dict(nothing),
        "requested_bytes": of_bytes("requested_bytes"),
        "reserved_bytes": of_bytes("reserved_bytes"),
        "reserved_bytes_by_private_pools": {},
        "segment": level("segment", *pages),
    }


def _counts(stats: dict[str, int]) -> dict[str, int]:
    """The counters that only grow, until `torch.cuda.reset_accumulated_memory_stats()`."""
    pages = {"allocated": stats["pages_obtained"], "freed": stats["pages_given_back"]}
    counts = {f"reserved_bytes.{name}": count * stats["page_bytes"] for name, count in pages.items()}
    counts |= {f"segment.{name}": count for name, count in pages.items()}
    totals = {
        "allocation": (stats["requests_served"], stats["blocks"]),
        "allocated_bytes": (stats["allocated_bytes.total"], stats["allocated_bytes.current"]),
        "requested_bytes": (stats["requested_bytes.total"], stats["requested_bytes.current"]),
    }
    for name, (total, current) in totals.items():
        counts |= {f"{name}.allocated": total, f"{name}.freed": total - current}
    return {**counts, "num_alloc_retries": stats["retries"], "num_ooms": stats["requests_refused"]}


def _forget_counts() -> None:
    _counted_before.update(_counts(memory_stats()))


def _summary(device: typing.Any = None, abbreviated: bool = False) -> str:
    """Takes the place of `torch.cuda.memory_summary`, whose rows are those of another allocator."""
    lines = [f"{name:35}{value:>20,}" for name, value in memory_stats().items()]
    return "\n".join(["tonnage's allocator", *lines])


def _main() -> None:
    """`python -m tonnage.torch [--plan FILE] (-m MODULE | SCRIPT) …`: runs a script or a module with the allocator."""
    from tonnage import torch as own

    parser = argparse.ArgumentParser(
        prog="python -m tonnage.torch",
        usage="%(prog)s [-h] [--plan FILE] (-m MODULE | SCRIPT) ...",
        description="Runs a script or a module with tonnage's allocator.",
    )
    parser.add_argument("--plan", metavar="FILE", help="a plan of `tonnage plan RECORDING --for-runtime`")
    # As Python's own option: what follows belongs to the module.
    parser.add_argument("-m", metavar="MODULE", nargs=argparse.REMAINDER, help="a module, as with `python -m`")
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="a script")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="arguments of the script or module")
    given = parser.parse_args()
    if given.script is None and not given.m:
        parser.error("name a script, or a module with -m")
    own.install(given.plan)
    if given.m:
        # `-mMODULE` without a space leaves the rest to the other arguments.
        sys.argv = [*given.m, *filter(None, [given.script]), *given.arguments]
        # As Python does for a module: what lies in the working directory can be imported.
        sys.path[0] = os.getcwd()
        runpy.run_module(given.m[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [given.script, *given.arguments]
    # As Python does for a script: what lies beside it can be imported.
    sys.path[0] = given.script.rpartition("/")[0] or "."
    runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    _main()
