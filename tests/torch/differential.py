# SPDX-License-Identifier: MIT OR Apache-2.0
"""PyTorch's real allocator and the policy that imitates it, driven by the same random calls.

The real one runs under `tonnage run`; what it was asked and all it answered is written as a script (the format is
described in `crates/tonnage-alloc/tests/torch_script/mod.rs`): every address, every event of its history, and every
so many calls all segments, blocks and counters. The example `torch_script` reads the calls and writes what the policy
answers. The two texts must be equal byte for byte.

One script, inside `tonnage run` (Python's `-I` keeps the hook of `tonnage run` out: the history is this test's own):

    tonnage run --capacity 1GiB --address-order ascending -- \\
        python -I tests/torch/differential.py --seed 1 --events 20000 --order ascending --settings "" --out FILE

Many scripts over a matrix of settings x 1 to 6 streams x roomy and tight x ascending and descending x pools x graphs,
each compared, which is also the long run:

    cargo build --release && cargo build --release -p tonnage-alloc --example torch_script
    TONNAGE=target/release/tonnage TORCH_PYTHON=.venv/bin/python \\
        python tests/torch/differential.py --matrix --events 10000000

The short scripts that the crate's own tests replay without torch are recorded by

    python tests/torch/differential.py --golden crates/tonnage-alloc/tests/golden

A script in which torch's behaviour is undefined (it frees a part of a segment, or miscounts the segments of a pool)
is compared up to there: the policy must say so at the very call, and what torch does from then on is not looked at.
"""

import argparse
import concurrent.futures
import ctypes
import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
# The newest release of torch that tonnage was verified with.
NEWEST = "2.15"
ROOT = Path(__file__).resolve().parents[2]
# Where the stand-in puts the first device, and how much room it gives it.
ADDRESS_BASE = 0x1000_0000_0000
ADDRESS_SPAN = 8 << 40
# No pool has this id: a snapshot of it has the history and no segments.
NO_POOL = (1 << 40, 1 << 40)


# The dimensions of the matrix.


@dataclasses.dataclass
class Plan:
    """How one script is made."""

    name: str
    settings: str = ""
    fraction: float = None
    kind: str = "mixed"
    live: int = 60
    toggle: float = 0.0
    updates: list = None
    # The dimensions; see `matrix`.
    streams: int = 1
    capacity: int = 8 * GIB
    context: int = 0
    order: str = "ascending"
    pools: int = 0
    graphs: bool = False
    # Whether pools stay to the end. If not, expandable segments soon lead to undefined behaviour.
    keep_pools: bool = False
    seed: int = 0
    events: int = 10_000
    show: int = 100

    @property
    def risky(self):
        """Whether torch may end up undefined, which can end the process."""
        return bool(((self.pools or self.graphs) and "expandable" in self.settings) or self.toggle or self.updates)

    @property
    def title(self):
        room = "tight" if self.capacity < 2 * GIB else "roomy"
        parts = [self.name, f"{self.streams} streams", room, self.order]
        return " ".join(parts + ["pools"] * bool(self.pools) + ["graphs"] * self.graphs + [f"seed {self.seed}"])


UPDATES = [
    "",
    "max_split_size_mb:40",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.5",
    "large_segment_size_mb:32",
    "large_segment_size_mb:20,max_split_size_mb:30",
    "expandable_segments:True",
    "expandable_segments:False",
    "throw_on_cudamalloc_oom:True",
    "throw_on_cudamalloc_oom:False",
    "no_such_key:1",
    "garbage_collection_threshold:0.3,max_split_size_mb:3",
]

SETTINGS = [
    Plan("default"),
    Plan("expandable", "expandable_segments:True"),
    Plan("split-40", "max_split_size_mb:40"),
    Plan("split-50-rounding", "max_split_size_mb:50,max_non_split_rounding_mb:30", kind="big"),
    Plan("split-20", "max_split_size_mb:20"),
    Plan("split-60-expandable", "max_split_size_mb:60,expandable_segments:True"),
    Plan("round-4", "roundup_power2_divisions:4"),
    Plan("round-list", "roundup_power2_divisions:[1:2,4:8,64:4,>:1]"),
    Plan("collect", "garbage_collection_threshold:0.4", fraction=0.6),
    Plan("collect-split", "garbage_collection_threshold:0.3,max_split_size_mb:64", fraction=0.8),
    Plan("collect-expandable", "garbage_collection_threshold:0.3,expandable_segments:True", fraction=0.7, toggle=0.01),
    Plan("large-24", "large_segment_size_mb:24"),
    Plan("large-25", "large_segment_size_mb:25", live=40),
    Plan("large-32-split", "large_segment_size_mb:32,max_split_size_mb:64"),
    Plan("large-64-expandable", "large_segment_size_mb:64,expandable_segments:True"),
    Plan("fraction", fraction=0.3),
    Plan("reject", "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"),
    Plan("reject-split", "throw_on_cudamalloc_oom:True,max_split_size_mb:40"),
    Plan("reserve", "expandable_segments:True,expandable_segments_reserve:0.1"),
    Plan("toggle", toggle=0.02),
    Plan("toggle-split", "max_split_size_mb:40", toggle=0.02),
    Plan("updates", fraction=0.9, updates=UPDATES),
    Plan("few-sizes", kind="few"),
    Plan("many-small", kind="tiny", live=1500),
]


def matrix(events, seed=0):
    """Plans without end for scripts of so many events: every setting in turn, each time with other dimensions."""
    combinations = {}
    for plan in SETTINGS:
        cells = list(itertools.product(range(1, 7), (False, True), ("ascending", "descending"), (0, 4), (False, True)))
        random.Random(f"{plan.name} {seed}").shuffle(cells)
        combinations[plan.name] = cells
    for number in itertools.count():
        plan = SETTINGS[number % len(SETTINGS)]
        cells = combinations[plan.name]
        streams, tight, order, pools, graphs = cells[number // len(SETTINGS) % len(cells)]
        chance = random.Random(f"{number} {seed}")
        yield dataclasses.replace(
            plan,
            # A capture needs a stream of its own.
            streams=max(streams, 2) if graphs else streams,
            capacity=chance.choice([300 * MIB, 512 * MIB, GIB]) if tight else 8 * GIB,
            context=chance.choice([2 * MIB, 74 * MIB]),
            keep_pools=chance.random() < 0.75 and dataclasses.replace(plan, pools=pools, graphs=graphs).risky,
            order=order,
            pools=pools,
            graphs=graphs,
            seed=seed * 1_000_000 + number,
            events=events,
            show=25 if number % 5 == 0 else 100,
        )


def some_size(chance, kind):
    if kind == "tiny":
        return chance.choice([1, 513, 2000, 5000, 70000])
    if kind == "big":
        return chance.randint(MIB, 300 * MIB)
    if kind == "few":
        return chance.choice([700 << 10, 3 * MIB, 17 * MIB, 33 * MIB])
    which = chance.random()
    if which < 0.3:
        return chance.randint(1, 4096)
    if which < 0.5:
        return chance.randint(1, MIB + 1000)
    if which < 0.6:
        edges = [MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 512, 513, 511, 2 * MIB, 20 * MIB, 20 * MIB + 512]
        return chance.choice(edges)
    if which < 0.8:
        return chance.randint(MIB, 12 * MIB)
    if which < 0.97:
        return chance.randint(8 * MIB, 80 * MIB)
    return chance.randint(80 * MIB, 400 * MIB)


# The real allocator.


class Undefined(Exception):
    """Torch has failed in a way that only undefined behaviour explains; the policy decides."""


class Real:
    """Calls torch, and writes what was called and what came of it.

    Events are found in torch's history, where each carries the number of the call it belongs to. Before 2.15 the
    history is read after every call instead, and without naming a pool, which crashes torch 2.11. Such a torch can be
    driven without graphs only: its captures allocate blocks of their own.
    """

    def __init__(self, plan, path):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = plan.settings
        import torch

        self.torch = torch
        self.c = torch._C
        self.file = open(path, "w")
        # The last request of a process that ended.
        self.asked = open(f"{path}.calls", "w", buffering=1) if plan.risky else None
        self.version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        self.numbered = self.version >= (2, 15)
        self.events = 0
        self.lines, self.shown, self.results = [], [], []
        self.live = {}
        self.pools = {}
        self.graph = None
        self.graphs_made = 0
        self.capturing = False
        self.standin = ctypes.CDLL(None)
        self.standin.tonnage_hold_stream.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        torch.cuda.init()
        self.device = torch.device("cuda", 0)
        free, total = torch.cuda.mem_get_info()
        self.remember()
        self.note(f"device {total} {plan.order} {total - free} {ADDRESS_BASE:x} {ADDRESS_SPAN}")
        self.note(f"rules {self.version[0]}.{self.version[1]}")
        self.note(f"settings {plan.settings}")
        default = torch.cuda.default_stream()
        self.streams = [default] + [torch.cuda.Stream() for _ in range(plan.streams - 1)]
        for stream in self.streams:
            self.note(f"stream {stream.cuda_stream} {stream.stream_id}")
        self.handles = [stream.cuda_stream for stream in self.streams]
        self.current = 0
        self.captured = set()

    @property
    def defers(self):
        """Whether frees that must wait are put off to the end of a capture."""
        return self.capturing or (self.version < (2, 13) and self.graph is not None)

    def remember(self):
        self.torch.cuda.memory._record_memory_history(context=None, clear_history=True)

    def note(self, call):
        """A call is about to happen: its events carry its number."""
        if self.asked:
            self.asked.write(f"> {call}\n")
        if self.numbered:
            self.c._cuda_setMemoryMetadata(str(len(self.lines)))
        elif self.lines:
            self.gather()
        self.lines.append(call)
        self.shown.append(None)
        self.results.append(None)

    def answer(self, result):
        self.results[-1] = result

    def gather(self):
        """Writes all calls so far with their events."""
        history = self.c._cuda_memorySnapshot(NO_POOL if self.numbered else None)["device_traces"][0]
        self.remember()
        events = [[] for _ in self.lines]
        for entry in history:
            action = entry["action"]
            address = entry["device_free"] if action == "oom" else entry["addr"]
            first, second = entry.get("pool_id", (0, 0))  # reported since torch 2.12
            text = f"{action} {address:x} {entry['size']} {entry['stream']} {first}.{second}\n"
            events[int(entry["user_metadata"]) if self.numbered else -1].append(text)
        self.events += len(history)
        for line, shown, happened, result in zip(self.lines, self.shown, events, self.results):
            self.file.write(f"> {line}\n")
            if shown:
                self.file.write(shown)
            if happened:
                self.file.writelines(happened)
            if result:
                self.file.write(f"{result}\n")
        for part in (self.lines, self.shown, self.results):
            part.clear()
        self.file.flush()

    def failed(self, error):
        """A call ended in an error that no script provokes."""
        self.answer(f"! error {str(error).splitlines()[0]}")
        raise Undefined from error

    def select(self, stream):
        """Makes a stream the current one; the allocator checks whether that is being captured."""
        if stream != self.current:
            chosen = self.streams[stream]
            self.c._cuda_setStream(chosen.stream_id, chosen.device_index, chosen.device_type)
            self.current = stream
        capturing = stream in self.captured
        if capturing != self.capturing:
            self.note(f"capture {'on' if capturing else 'off'}")
            self.capturing = capturing

    def malloc(self, name, size, stream, as_tensor):
        """Whether there was memory. Only tensors can be recorded on streams."""
        before = self.current
        if as_tensor:
            self.select(stream)
        self.note(f"malloc {name} {size} {self.handles[stream]}")
        try:
            if as_tensor:
                block = self.torch.empty((size,), dtype=self.torch.uint8, device=self.device)
                address = block.data_ptr()
            else:
                address = block = self.c._cuda_cudaCachingAllocator_raw_alloc(size, self.handles[stream])
            self.live[name] = block
            self.answer(f"= {address:x}")
        except self.torch.OutOfMemoryError as error:
            self.answer("! rejected" if "preemptively rejected" in str(error) else "! oom")
        except RuntimeError as error:
            if "already recording to mempool_id" not in str(error):
                self.failed(error)
            self.answer("! pool")
        if as_tensor:
            self.select(before)
        return name in self.live

    def free(self, name):
        self.note(f"free {name}")
        block = self.live.pop(name)
        if isinstance(block, int):
            self.c._cuda_cudaCachingAllocator_raw_delete(block)

    def record(self, name, stream):
        self.note(f"record {name} {self.handles[stream]}")
        self.live[name].record_stream(self.streams[stream])

    def annotate(self, name):
        if not hasattr(self.c, "_cuda_annotateMemory"):
            return  # before torch 2.14
        # The note takes the place of the number, so it is the number.
        self.note(f"annotate {name}")
        block = self.live[name]
        address = block if isinstance(block, int) else block.data_ptr()
        self.c._cuda_annotateMemory(address, str(len(self.lines) - 1))

    def hold(self, stream, hold):
        self.note(f"{'hold' if hold else 'let'} {self.handles[stream]}")
        self.standin.tonnage_hold_stream(self.handles[stream], hold)

    def empty_cache(self):
        self.risk()
        self.note("empty_cache")
        try:
            self.torch.cuda.empty_cache()
        except RuntimeError as error:
            self.failed(error)

    def fraction(self, fraction):
        self.note(f"fraction {fraction}")
        self.torch.cuda.set_per_process_memory_fraction(fraction)

    def update(self, settings):
        self.note(f"update {settings}")
        try:
            self.c._accelerator_setAllocatorSettings(settings)
        except (RuntimeError, ValueError):
            self.answer("! settings")

    def reset_peak(self):
        self.note("reset_peak")
        self.torch.cuda.reset_peak_memory_stats()

    def reset_accumulated(self):
        self.note("reset_accumulated")
        self.torch.cuda.reset_accumulated_memory_stats()

    def risk(self):
        """Before a call that may end the process: what happened so far is not lost."""
        if self.asked:
            self.gather()

    # Pools and graphs.

    def make_pool(self, custom, no_split, use_on_oom):
        allocator = self.own_allocator() if custom else None
        pool = self.torch.cuda.MemPool(allocator, use_on_oom=use_on_oom, no_split=no_split)
        identity = tuple(pool.id)
        self.pools[identity] = pool
        self.note(f"{'pool_custom' if custom else 'pool'} {pair(identity)}")
        if no_split:
            self.note(f"no_split {pair(identity)}")
        if use_on_oom:
            self.note(f"use_on_oom {pair(identity)}")
        return identity

    def own_allocator(self):
        """An allocator of the user's: the driver, by way of Python."""
        if not hasattr(self, "custom"):
            malloc, free = self.standin.cudaMalloc, self.standin.cudaFree
            malloc.argtypes, free.argtypes = [ctypes.c_void_p, ctypes.c_size_t], [ctypes.c_void_p]

            def take(size, device, stream):
                address = ctypes.c_void_p()
                return None if malloc(ctypes.byref(address), size) else address.value

            def give_back(address, size, device, stream):
                free(address)

            number = ctypes.c_void_p
            take_type = ctypes.CFUNCTYPE(number, ctypes.c_ssize_t, ctypes.c_int, number)
            give_type = ctypes.CFUNCTYPE(None, number, ctypes.c_ssize_t, ctypes.c_int, number)
            self.functions = take_type(take), give_type(give_back)
            addresses = [ctypes.cast(function, number).value for function in self.functions]
            self.custom = self.c._cuda_customAllocator(*addresses)
        return self.custom

    def drop_pool(self, identity):
        # Torch aborts when this happens while the current stream is being captured.
        before = self.current
        self.select(0)
        self.risk()
        self.note(f"drop {pair(identity)}")
        del self.pools[identity]
        self.select(before)

    def enter_pool(self, identity):
        """`use_mem_pool`, call by call."""
        self.note(f"begin {pair(identity)}")
        self.c._cuda_beginAllocateCurrentThreadToPool(0, identity)

    def leave_pool(self, identity):
        self.note(f"end {pair(identity)}")
        self.c._cuda_endAllocateToPool(0, identity)
        self.note(f"release {pair(identity)}")
        self.c._cuda_releasePool(0, identity)

    def begin_capture(self, pool, streams):
        """Captures the first of the streams; the others join."""
        first, *others = streams
        self.graph = self.torch.cuda.CUDAGraph()
        self.select(first)
        if pool is None:
            self.graphs_made += 1
        self.graph_pool = pool or (self.graphs_made, 0)
        self.note(" ".join(["begin", pair(self.graph_pool), *(str(self.handles[stream]) for stream in streams)]))
        self.graph.capture_begin(pool=pool, capture_error_mode="relaxed")
        event = self.torch.cuda.Event()
        event.record(self.streams[first])
        for stream in others:
            self.streams[stream].wait_event(event)
        self.capture_stream = first
        self.captured = set(streams)
        self.select(first)

    def end_capture(self):
        self.select(self.capture_stream)
        self.captured = set()
        self.select(self.capture_stream)
        self.note(f"end {pair(self.graph_pool)}")
        self.graph.capture_end()
        assert tuple(self.graph.pool()) == self.graph_pool
        graph, self.graph = self.graph, None
        self.select(0)
        return graph, self.graph_pool

    def reset_graph(self, graph, pool):
        self.note(f"release {pair(pool)}")
        graph.reset()

    # Looking.

    def show(self):
        self.gather()
        self.note("show")
        text = []
        for segment in self.c._cuda_memorySnapshot(None)["segments"]:
            first, second = segment["segment_pool_id"]
            names = ("total_size", "allocated_size", "active_size", "requested_size", "stream")
            numbers = " ".join(str(segment[name]) for name in names)
            kind = f"{segment['segment_type']} {'expandable' if segment['is_expandable'] else 'plain'}"
            text.append(f"segment {segment['address']:x} {numbers} {first}.{second} {kind}\n")
            for block in segment["blocks"]:
                size, requested = block["size"], block["requested_size"]
                text.append(f"  {block['address']:x} {size} {requested} {block['state']}\n")
        text.extend(f"{line}\n" for line in counters(self.c._cuda_memoryStats(0)))
        self.shown[-1] = "".join(text)

    def finish(self):
        self.gather()
        self.file.write(f"# {self.events} events\n")
        self.file.close()


def pair(identity):
    return f"{identity[0]} {identity[1]}"


def counters(stats):
    """All of `memory_stats`; fails if there is one that is not known here."""
    stats = dict(stats)

    def one(stat):
        return f"{stat['current']} {stat['peak']} {stat['allocated']} {stat['freed']}"

    def three(stat):
        return " | ".join(one(stat[pool]) for pool in ("all", "small_pool", "large_pool"))

    for name in ("allocation", "segment", "active", "inactive_split"):
        yield f"{name} {three(stats.pop(name))}"
    for name in ("allocated", "reserved", "active", "inactive_split", "requested"):
        yield f"{name}_bytes {three(stats.pop(f'{name}_bytes'))}"
    for (first, second), stat in sorted(stats.pop("reserved_bytes_by_private_pools", {}).items()):
        yield f"pool {first}.{second} {three(stat)}"
    for name in ("oversize_allocations", "oversize_segments"):
        yield f"{name} {one(stats.pop(name))}"
    counts = ("alloc_retries", "ooms", "sync_all_streams", "device_alloc", "device_free", "oom_rejections")
    numbers = [stats.pop(f"num_{name}", 0) for name in counts]
    yield f"counts {' '.join(map(str, numbers))} {stats.pop('max_split_size')}"
    assert not stats, stats


def drive(plan, path):
    """One random script. Returns the number of events."""
    real = Real(plan, path)
    try:
        invent(plan, real)
        real.show()
    except Undefined:
        pass
    real.finish()
    return real.events


def invent(plan, real):
    chance = random.Random(plan.seed)
    everyone = range(plan.streams)
    expandable = "expandable_segments:True" in plan.settings
    other_settings = [part for part in split_settings(plan.settings) if not part.startswith("expandable_segments:")]
    names = itertools.count(1)
    oldest = []
    tensors = {}
    graphs, captured_once = [], set()
    # Blocks that streams other than their own use, since before or since a capture.
    used, used_in_capture = set(), set()
    # Torch completes several deferred frees in an unknown order, so there is one at a time.
    deferred = None
    # Torch forgets to forget uses in a capture if the block is freed outside of one, and a block at the same heap
    # address inherits them. That shows where a block is freed in a capture that was used elsewhere before, so there is
    # only one of the two in a script.
    leave_uses = chance.random() < 0.5
    if plan.fraction is not None:
        real.fraction(plan.fraction)
    for step in itertools.count():
        if real.events >= plan.events:
            break
        live = real.live
        if plan.toggle and chance.random() < plan.toggle:
            expandable = not expandable
            real.update(",".join([*other_settings, f"expandable_segments:{expandable}"]))
        if plan.updates and chance.random() < 0.01:
            real.update(chance.choice(plan.updates))
            if chance.random() < 0.2:
                real.fraction(chance.choice([0.5, 0.9, 1.0]))
        if plan.pools and chance.random() < 0.01 and len(real.pools) < plan.pools:
            real.make_pool(chance.random() < 0.2, chance.random() < 0.15, chance.random() < 0.3)
        if real.pools and not plan.keep_pools and chance.random() < 0.004:
            real.drop_pool(chance.choice(list(real.pools)))
        if plan.graphs and chance.random() < 0.01:
            if real.graph:
                graphs.append(real.end_capture())
            else:
                # Torch's allocator of host memory forbids a second capture into a pool once no graph is left there.
                captured = [pool for _, pool in graphs]
                share = captured + [pool for pool in real.pools if pool not in captured_once]
                pool = chance.choice(share) if share and chance.random() < 0.4 + len(graphs) / 20 else None
                first = chance.randrange(1, plan.streams)
                others = [stream for stream in everyone if stream not in (0, first) and chance.random() < 0.5]
                real.begin_capture(pool, [first, *others])
                captured_once.add(real.graph_pool)
        elif graphs and not real.graph and not plan.keep_pools and chance.random() < 0.006:
            real.reset_graph(*graphs.pop(chance.randrange(len(graphs))))
        wave = 0.5 + 0.5 * abs(step // 150 % 20 - 10) / 10
        which = chance.random()
        if (which < 0.62 and len(live) < plan.live * wave) or not live:
            name, stream, size = next(names), chance.randrange(plan.streams), some_size(chance, plan.kind)
            if real.graph and chance.random() < 0.5:
                stream = chance.choice(sorted(real.captured))
            as_tensor = chance.random() < 0.5
            pool = chance.choice(list(real.pools)) if real.pools and chance.random() < 0.4 else None
            if pool and real.graph and real.graph_pool == pool:
                pool = None
            if pool:
                real.enter_pool(pool)
            if not (stream in real.captured if as_tensor else real.capturing) and (real.numbered or not real.graph):
                deferred = None
            if real.malloc(name, size, stream, as_tensor):
                oldest.append(name)
                if as_tensor:
                    tensors[name] = stream
            if pool:
                real.leave_pool(pool)
        elif which < 0.97:
            while oldest[0] not in live:
                oldest.pop(0)
            name = oldest[0]
            if chance.random() < 0.7:
                place = chance.randrange(len(oldest))
                name = oldest[place] if oldest[place] in live else name
            waits = name in used or name in used_in_capture
            if real.defers:
                allowed = not waits or (not deferred and not (leave_uses and name in used))
            else:
                allowed = leave_uses or name not in used_in_capture
            if allowed:
                if real.defers and waits:
                    deferred = name
                used.discard(name)
                used_in_capture.discard(name)
                tensors.pop(name, None)
                real.free(name)
        elif which < 0.975:
            real.empty_cache()
            if not real.defers:
                deferred = None
        elif which < 0.98:
            real.reset_peak()
        elif which < 0.982:
            real.reset_accumulated()
        elif which < 0.985 and live:
            real.annotate(chance.choice(list(live)))
        often = 0.25 if leave_uses or not real.defers else 0.05
        if plan.streams > 1 and tensors and chance.random() < often:
            name = chance.choice(list(tensors))
            for _ in range(chance.randint(1, 3)):
                stream = chance.randrange(plan.streams)
                real.record(name, stream)
                if stream != tensors[name]:
                    (used_in_capture if real.defers else used).add(name)
        if plan.streams > 1 and chance.random() < 0.1:
            real.hold(chance.randrange(plan.streams), chance.random() < 0.5)
        if step % plan.show == plan.show - 1:
            real.show()
    if real.graph:
        real.end_capture()


def split_settings(settings):
    """The parts between commas, but not those in brackets."""
    parts, depth, part = [], 0, ""
    for letter in settings:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [*parts, part] if part else parts


# The comparison.


@dataclasses.dataclass
class Outcome:
    plan: Plan
    events: int = 0
    calls: int = 0
    seconds: float = 0.0
    undefined: str = ""
    problem: str = ""


def find_programs():
    """`tonnage`, a Python with torch, and the example `torch_script`."""
    tonnage = os.environ.get("TONNAGE", str(ROOT / "target" / "debug" / "tonnage"))
    script = os.environ.get("TORCH_SCRIPT", str(ROOT / "target" / "release" / "examples" / "torch_script"))
    return tonnage, os.environ.get("TORCH_PYTHON", "python"), script


def run(plan, folder, keep=None):
    """Runs one script under `tonnage run` and compares it with the policy; what torch did goes to the file `keep`."""
    tonnage, python, torch_script = find_programs()
    started = time.monotonic()
    outcome = Outcome(plan)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        real, policy = Path(place, "real.txt"), Path(place, "policy.txt")
        # A script that runs out of memory is not to be run again without a limit: that would be the one compared.
        line = [tonnage, "run", "--no-progress", "--stop-at-oom", "-o", f"{place}/run.tonnage"]
        line += ["--capacity", str(plan.capacity)]
        line += ["--context", str(plan.context), "--address-order", plan.order, "--"]
        line += [python, "-I", __file__, "--plan", json.dumps(dataclasses.asdict(plan)), "--out", str(real)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}
        ran = subprocess.run(line, capture_output=True, text=True, env=kept)
        if not real.exists():
            outcome.problem = f"the script did not start: {ran.stderr[-2000:]}"
            return outcome
        whole = real.read_bytes()[-200:].endswith(b" events\n")
        calls = real if whole else Path(f"{real}.calls")
        if not calls.exists():
            outcome.problem = f"torch ended without a word: {ran.stderr[-2000:]}"
            return outcome
        with open(calls) as asked, open(policy, "w") as answers:
            replayed = subprocess.run([torch_script], stdin=asked, stdout=answers, stderr=subprocess.PIPE, text=True)
        compare(real, policy, whole, outcome, replayed.stderr)
        if keep:
            keep.write_bytes(real.read_bytes())
        if outcome.problem:
            kept_at = Path(folder, f"difference-{plan.name}-{plan.seed}.txt")
            kept_at.write_bytes(calls.read_bytes())
            Path(f"{kept_at}.policy").write_bytes(policy.read_bytes())
            outcome.problem += f"\ncalls: {kept_at}\n{ran.stderr[-500:]}{replayed.stderr[-500:]}"
    outcome.seconds = time.monotonic() - started
    return outcome


ACTIONS = ("alloc ", "free_", "segment_", "oom ", "snapshot ", "annotate ")


def without_pools(lines):
    """Removes fields that an older torch does not report: the pool of an event, and the contents of each pool."""
    for line in lines:
        if line.startswith(ACTIONS):
            yield f"{line.rsplit(' ', 1)[0]}\n"
        elif not line.startswith("pool "):
            yield line


def compare(real, policy, whole, outcome, complaint):
    """Reads both texts in step up to the first line that differs."""
    call, before = "", []
    with open(real) as left, open(policy) as right:
        old = any(line.startswith("> rules") and line != f"> rules {NEWEST}\n" for line in itertools.islice(left, 3))
        left.seek(0)
        if old:
            left, right = without_pools(left), without_pools(right)
        for wanted, got in itertools.zip_longest(left, right):
            if wanted == got:
                if wanted.startswith("> "):
                    outcome.calls += 1
                    call, before = wanted, []
                elif wanted.startswith(ACTIONS):
                    outcome.events += 1
                before.append(wanted)
                continue
            # The policy reports undefined behavior at the very call where they part, or torch died in one of the calls
            # since its last report, whose events are lost.
            rest = itertools.chain([got or ""], right)
            if wanted is None and not whole:
                flagged = next((text for text in rest if text.startswith("! undefined")), None)
            else:
                here = itertools.takewhile(lambda text: not text.startswith("> "), rest)
                flagged = next((text for text in here if text.startswith("! undefined")), None)
            if flagged:
                outcome.undefined = flagged.split()[2]
                return
            told = "".join(before[1:])
            outcome.problem = f"after {outcome.events} events, in {call}{told}real:   {wanted}policy: {got}"
            return
    if complaint or not whole:
        outcome.problem = f"both end after {outcome.events} events, too early: {complaint}"


def run_all(plans, events, folder, jobs=2, tell=None):
    """Runs scripts side by side, each of all settings once and then on until so many events were compared."""
    outcomes, waiting, begun = [], set(), 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while True:
            compared = sum(outcome.events for outcome in outcomes)
            expected = compared + sum(future.plan.events for future in waiting)
            while len(waiting) < jobs and (begun < len(SETTINGS) or expected < events):
                plan = next(plans, None)
                if plan is None:
                    break
                future = pool.submit(run, plan, folder)
                future.plan = plan
                waiting.add(future)
                begun += 1
                expected += plan.events
            if not waiting:
                return outcomes
            done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                outcomes.append(future.result())
                if tell:
                    tell(outcomes)


def summary(outcomes):
    """Events by every dimension of the matrix."""
    sums = {}
    for outcome in outcomes:
        plan = outcome.plan
        keys = [
            ("settings", plan.name),
            ("streams", plan.streams),
            ("room", "tight" if plan.capacity < 2 * GIB else "roomy"),
            ("addresses", plan.order),
            ("pools", "yes" if plan.pools else "no"),
            ("graphs", "yes" if plan.graphs else "no"),
        ]
        for key in keys:
            events, scripts, undefined = sums.get(key, (0, 0, 0))
            sums[key] = events + outcome.events, scripts + 1, undefined + bool(outcome.undefined)
    order = sorted(sums, key=lambda key: (key[0] != "settings", key[0], str(key[1])))
    return [f"{kind:10} {value!s:20} {sums[kind, value][0]:>12,} events in {sums[kind, value][1]:>4} scripts, "
            f"{sums[kind, value][2]} ended undefined" for kind, value in order]  # fmt: skip


def golden_plans(version):
    """The inputs of the golden scripts; an older torch has one."""
    if version != NEWEST:
        return [Plan(f"torch-{version}", kind="few", streams=2, capacity=GIB, order="descending")]
    return [
        Plan("default", capacity=4 * GIB),
        Plan("tight", capacity=300 * MIB, order="descending"),
        Plan("streams", streams=6, capacity=GIB),
        Plan("expandable", "expandable_segments:True", streams=2, capacity=512 * MIB, order="descending"),
        Plan("split", "max_split_size_mb:40,max_non_split_rounding_mb:24", capacity=GIB),
        Plan(
            "collect",
            "garbage_collection_threshold:0.4,roundup_power2_divisions:[1:2,4:8,64:4,>:1]",
            fraction=0.6,
            capacity=2 * GIB,
            order="descending",
        ),
        Plan("pools", pools=5, streams=3, capacity=GIB),
        Plan("graphs", graphs=True, streams=3, capacity=GIB),
        Plan("reject", "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True", capacity=2 * GIB),
        Plan("toggle", "large_segment_size_mb:32", toggle=0.03, capacity=GIB),
    ]


def record_golden(options):
    _, python, _ = find_programs()
    asked = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    version = asked.stdout.split("+")[0].strip()
    failed = 0
    for number, plan in enumerate(golden_plans(".".join(version.split(".")[:2]))):
        plan = dataclasses.replace(plan, context=74 * MIB, seed=number + 1, events=650, show=200)
        outcome = run(plan, options.golden, keep=Path(options.golden, f"{plan.name}.txt"))
        print(f"{plan.title}: {outcome.events} events, {outcome.undefined or outcome.problem or 'equal'}")
        failed += bool(outcome.undefined or outcome.problem)
        path = Path(options.golden, f"{plan.name}.txt")
        lines = path.read_text().splitlines(keepends=True)
        note = f"# What torch {version} did, recorded by tests/torch/differential.py.\n"
        path.write_text(note + "".join(line for line in lines if not line.startswith("#")))
    return 1 if failed else 0


def run_matrix(options):
    folder = options.folder or tempfile.mkdtemp(prefix="differential-")
    plans = matrix(options.per_script, options.seed)
    if options.only:
        plans = (plan for plan in plans if plan.name in options.only.split(","))
    started = time.monotonic()

    def tell(outcomes):
        last = outcomes[-1]
        events = sum(outcome.events for outcome in outcomes)
        verdict = last.problem or (f"undefined from here: {last.undefined}" if last.undefined else "equal")
        print(f"{len(outcomes)}: {events:,} events, {time.monotonic() - started:.0f} s: {last.plan.title}: "
              f"{last.events} events, {last.calls} calls, {last.seconds:.1f} s, {verdict}", flush=True)  # fmt: skip

    outcomes = run_all(plans, options.events, folder, options.jobs, tell)
    print("\n".join(summary(outcomes)))
    different = [outcome for outcome in outcomes if outcome.problem]
    undefined = sum(bool(outcome.undefined) for outcome in outcomes)
    events = sum(outcome.events for outcome in outcomes)
    print(f"{events:,} events in {len(outcomes)} scripts, {undefined} ended undefined, {len(different)} differ")
    return 1 if different else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", action="store_true", help="run many scripts and compare each")
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-script", type=int, default=50_000, help="events of each script of the matrix")
    parser.add_argument("--only", help="these settings of the matrix, with commas between")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", help="where differences are kept")
    parser.add_argument("--golden", help="the folder to record golden scripts into")
    parser.add_argument("--out", help="the file of one script, inside `tonnage run`")
    parser.add_argument("--settings", default="")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--order", default="descending", help="what `--address-order` says")
    parser.add_argument("--pools", type=int, default=0)
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--plan", help="all of these as JSON")
    options = parser.parse_args()
    if options.matrix:
        return run_matrix(options)
    if options.golden:
        return record_golden(options)
    if not options.out:
        parser.error("one of --matrix, --golden and --out")
    if "TONNAGE_RUN" not in os.environ or not sys.flags.isolated:
        parser.error("a script runs inside `tonnage run`, with `python -I`")
    if options.plan:
        plan = Plan(**json.loads(options.plan))
    else:
        plan = Plan("given", options.settings, streams=options.streams, order=options.order, pools=options.pools)
        plan = dataclasses.replace(plan, graphs=options.graphs, seed=options.seed, events=options.events)
    drive(plan, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
