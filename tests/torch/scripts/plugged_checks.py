"""Promises of tonnage's allocator to PyTorch, checked from inside a dry run: streams, threads, graphs, errors."""

import ctypes
import itertools
import json
import sys
import threading

import torch

allocator = sys.modules["tonnage.torch"]
MIB = 1 << 20
standin = ctypes.CDLL(None)


def block(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def hold(stream, on):
    """Lets the work of a stream wait, or be done: a control of the stand-in."""
    standin.tonnage_hold_stream(ctypes.c_void_p(stream.cuda_stream), ctypes.c_bool(on))


def figures_are_exact():
    first, second = block(3), torch.empty(10, device="cuda")
    stats = allocator.memory_stats()
    assert stats["requested_bytes.current"] == 3 * MIB + 40
    assert stats["allocated_bytes.current"] == 3 * MIB + 512 == torch.cuda.memory_allocated()
    assert stats["reserved_bytes.current"] == 4 * MIB == torch.cuda.memory_reserved()
    del first
    assert torch.cuda.memory_allocated() == 512
    assert torch.cuda.max_memory_allocated() == 3 * MIB + 512
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 512
    assert allocator.memory_stats()["allocated_bytes.peak_ever"] == 3 * MIB + 512
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 2 * MIB
    assert "allocated_bytes.current" in torch.cuda.memory_summary()
    del second


def streams_are_waited_for():
    side = torch.cuda.Stream()
    used = block(8)
    address = used.data_ptr()
    used.record_stream(side)
    hold(side, True)
    del used
    # The side stream may still write to it: no stream gets it.
    others = [block(8) for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    assert allocator.memory_stats()["blocks_waiting_for_streams"] == 1
    hold(side, False)
    again = block(8)
    assert allocator.memory_stats()["blocks_waiting_for_streams"] == 0
    assert again.data_ptr() == address
    # A block of another stream, freed while that stream is busy.
    with torch.cuda.stream(side):
        own = block(8)
    address = own.data_ptr()
    hold(side, True)
    del own
    assert block(8).data_ptr() != address
    with torch.cuda.stream(side):
        assert block(8).data_ptr() == address, "the stream itself is in order"
    hold(side, False)


def threads_may_free():
    before = allocator.memory_stats()
    made = [[] for _ in range(4)]

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for step in range(150):
                made[number].append(torch.empty(700 * (step + 1) * (number + 1), dtype=torch.uint8, device="cuda"))
                if step % 3 == 0:
                    # The block of the neighbour.
                    neighbour = made[(number + 1) % 4]
                    if neighbour:
                        neighbour.pop(0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    live = [tensor for tensors in made for tensor in tensors]
    ranges = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.numel()) for tensor in live)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges)), "two blocks overlap"
    after = allocator.memory_stats()
    assert after["blocks"] - before["blocks"] == len(live)
    assert after["requests_served"] - before["requests_served"] == 600
    del live
    made.clear()
    after = allocator.memory_stats()
    assert after["blocks"] == before["blocks"] and after["unknown_frees"] == 0


def graphs_keep_their_memory():
    static = torch.zeros(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        between = static + 1
        address = between.data_ptr()
        out = between.relu()
        del between
    assert not torch.cuda.is_current_stream_capturing()
    graph.replay()
    # The graph writes again to memory that it has freed.
    others = [torch.empty_like(static) for _ in range(6)]
    assert address not in [other.data_ptr() for other in others]
    # A second graph may share it.
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        more = static + 2
        assert more.data_ptr() == address
        # Another stream of the program goes on meanwhile, with memory that still waits.
    del others, more, out, graph, second
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    assert reserved == 4 * MIB, f"the pool's memory came back: {reserved}"
    graphed = torch.cuda.make_graphed_callables(torch.nn.Linear(8, 8).cuda(), (torch.randn(4, 8, device="cuda"),))
    graphed(torch.randn(4, 8, device="cuda")).sum().backward()


def a_capture_is_not_disturbed():
    """While a graph is captured, other streams are served without asking, waiting or unmapping."""
    side = torch.cuda.Stream()
    waiting = block(4)
    waiting.record_stream(side)
    hold(side, True)
    del waiting
    static = torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static.add_(1)
        before = allocator.memory_stats()
        with torch.cuda.stream(torch.cuda.default_stream()):
            large = block(64)
        torch.cuda.empty_cache()
        after = allocator.memory_stats()
        asked = ("events_recorded", "waits", "pages_moved", "pages_given_back")
        assert all(before[name] == after[name] for name in asked), (before, after)
    hold(side, False)
    graph.replay()
    del large, graph


def what_cannot_be_served_is_said():
    try:
        block(1 << 20)
        raise AssertionError("a terabyte")
    except torch.OutOfMemoryError as error:
        text = str(error)
    assert text.startswith("CUDA out of memory. Tried to allocate 1.00 TiB. GPU 0 has a total capacity of"), text
    for call in (
        lambda: torch.empty(4, device="cuda:1"),
        torch.cuda.MemPool,
        torch.cuda.memory_snapshot,
    ):
        try:
            call()
            raise AssertionError("served")
        except RuntimeError as error:
            print("refused:", str(error).splitlines()[0])
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        held = [block(512) for _ in range(64)]
        raise AssertionError(f"no limit: {len(held)}")
    except torch.OutOfMemoryError as error:
        print("limited:", str(error).splitlines()[0])
    torch.cuda.set_per_process_memory_fraction(1.0)


figures_are_exact()
streams_are_waited_for()
threads_may_free()
graphs_keep_their_memory()
a_capture_is_not_disturbed()
what_cannot_be_served_is_said()
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = allocator.memory_stats()
print("left", json.dumps({name: left[name] for name in ("blocks", "blocks_waiting_for_streams", "unknown_frees")}))
