# SPDX-License-Identifier: MIT OR Apache-2.0
"""Records on a real GPU, through torch's own history of its allocator.

Torch keeps the last events in a ring. A thread looks how far the ring has filled and writes what is new to a file
before it comes round, so that the memory taken is bounded and the recording is not. Torch's own
statistics count events that the ring lost all the same; they are reported.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tonnage import _tonnage
from tonnage._ask import Error
from tonnage._recording import PathLike, Recording

if TYPE_CHECKING:
    from types import TracebackType


#: How often the ring is looked at, in seconds; a look takes microseconds.
_TICK = 0.1
#: Events at the end of a piece by which the next one is joined to it.
_OVERLAP = 8


class record(contextlib.AbstractContextManager["Recorded"]):
    """Records what happens to GPU memory inside of a `with`.

        with tonnage.record("train.tonnage") as recorded:
            train()
        print(recorded.recording.explain())

    Needs a GPU (or a dry run around it). `ring` is how many events torch keeps in memory; the rest goes to the disk. If
    the block ends out of memory, the recording is left and its explanation printed on stderr; the exception goes on.
    Each rank of a distributed job writes its own file, `train.rank3.tonnage`.
    """

    def __init__(self, output: PathLike = "recording.tonnage", *, ring: int = 100_000, explain: bool = True) -> None:
        if ring < 1000:
            raise ValueError("a ring of fewer than 1000 events loses most of them")
        self._output = _of_this_rank(Path(output))
        self._ring = ring
        self._explain = explain
        self._recorded = Recorded(self._output)

    def __enter__(self) -> Recorded:
        import torch

        if not torch.cuda.is_available():
            raise Error("torch sees no GPU to record on", "`tonnage run` and dry_run() need none")
        torch.cuda.init()
        self._torch = torch
        try:
            torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=self._ring)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise Error(
                f"torch keeps no history here: {reason}", "its own allocator does; other backends do not"
            ) from error
        self._folder = Path(tempfile.mkdtemp(prefix=f".{self._output.name}-", dir=self._output.absolute().parent))
        self._pieces: list[Path] = []
        self._tails: dict[int, list[tuple[Any, ...]]] = {}
        self._marked = 0
        self._drains = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._at_start = self._handled()
        self._at_drain = self._at_start
        self._seen = 0
        self._came_round = False
        with contextlib.suppress(Exception):
            # At a failure what led to it must be safe, whatever comes after; other allocators have no such moment.
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        self._thread = threading.Thread(target=self._watch, name="tonnage-record", daemon=True)
        self._thread.start()
        return self._recorded

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        torch = self._torch
        self._stop.set()
        self._thread.join()
        self._drain(last=True)
        torch.cuda.memory._record_memory_history(None)
        recorded = self._recorded
        if self._came_round:
            # A block that waits for another stream is counted before its event is written: never less than none.
            recorded.lost = max(0, self._handled() - self._at_start - self._seen)
        notes = ["the context and what other programs held"]
        if recorded.lost:
            notes.append(
                f"the first {recorded.lost} allocations and frees: the ring of {self._ring} events came round before "
                "they were written; record with a larger ring"
            )
        recorded.events = _tonnage.join(
            [os.fspath(piece) for piece in self._pieces], os.fspath(self._output), self._facts(), notes
        )
        shutil.rmtree(self._folder, ignore_errors=True)
        if kind is not None and issubclass(kind, torch.OutOfMemoryError) and self._explain:
            print_explanation(recorded)

    def _facts(self) -> list[tuple[str, str]]:
        torch = self._torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts = [
            ("torch.version", str(torch.__version__)),
            ("gpu.name", properties.name),
            ("gpu.capacity", str(properties.total_memory)),
            ("gpu.capacity.known", "read"),
            ("command", " ".join(sys.orig_argv)),
        ]
        if "RANK" in os.environ:
            facts.append(("process.rank", os.environ["RANK"]))
        return facts

    def _handled(self) -> int:
        """Blocks handed out and taken back so far, by torch's own count."""
        torch = self._torch
        total = 0
        for device in range(torch.cuda.device_count()):
            counts = torch._C._cuda_memoryStats(device)["allocation"]["all"]
            total += counts["allocated"] + counts["freed"]
        return total

    def _watch(self) -> None:
        while not self._stop.wait(_TICK):
            # A block is at most three events (handed out, requested back, taken back), a segment one or two more.
            if 2 * (self._handled() - self._at_drain) > self._ring // 2:
                with contextlib.suppress(Exception):
                    self._drain()

    def _out_of_memory(self, *_: object) -> None:
        self._recorded.out_of_memory = True
        # An exception here would take the place of the script's own.
        with contextlib.suppress(Exception):
            self._drain()

    def _drain(self, *, last: bool = False) -> None:
        """Writes what has been recorded since the last time."""
        with self._lock:
            self._at_drain = self._handled()
            snapshot = self._torch.cuda.memory._snapshot()
            traces = [self._new(device, trace) for device, trace in enumerate(snapshot.get("device_traces", []))]
            self._seen += sum(event["action"] in ("alloc", "free_completed") for trace in traces for event in trace)
            marks = [mark for mark in snapshot.get("external_annotations", []) if mark["time_us"] > self._marked]
            self._marked = max((mark["time_us"] for mark in marks), default=self._marked)
            piece = {**snapshot} if last else {}
            piece.update(device_traces=traces, external_annotations=marks)
            self._drains += 1
            path = self._folder / f"{self._drains:06}.pickle"
            with path.open("wb") as file:
                pickle.dump(piece, file, protocol=5)
            self._pieces.append(path)

    def _new(self, device: int, trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The events of a ring that come after those already written."""
        tail = self._tails.get(device)
        start = _end_of(tail, trace) if tail else 0
        if start is None or (tail is None and len(trace) >= self._ring):
            # Events are missing before these. A conclusion from a state with a hole is guesswork; one from
            # the state at the end is not, so the recording begins here.
            self._came_round = True
            self._seen = 0
            for piece in self._pieces:
                piece.unlink()
            self._pieces.clear()
        if trace:
            self._tails[device] = [_key(one) for one in trace[-_OVERLAP:]]
        return trace[start or 0 :]


def _of_this_rank(path: Path) -> Path:
    """A file for each process of a distributed job: `train.tonnage` is `train.rank3.tonnage` in rank 3."""
    rank = os.environ.get("RANK")
    if rank is None or os.environ.get("WORLD_SIZE", "1") == "1":
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _end_of(tail: list[tuple[Any, ...]], trace: list[dict[str, Any]]) -> int | None:
    """Where the last events of a piece end in a ring; none if they are no longer there."""
    for end in range(len(trace), len(tail) - 1, -1):
        if _key(trace[end - 1]) == tail[-1] and [_key(one) for one in trace[end - len(tail) : end]] == tail:
            return end
    return None


def _key(event: dict[str, Any]) -> tuple[Any, ...]:
    return (event.get("time_us"), event["action"], event.get("addr"), event.get("size"), event.get("stream"))


def print_explanation(recorded: Recorded) -> None:
    """Says on stderr why memory ran out."""
    print(f"\ntonnage: {recorded.path} has the recording\n", file=sys.stderr)
    try:
        print(recorded.recording.explain(), file=sys.stderr)
    except Error as failure:
        print(f"it cannot be explained: {failure}", file=sys.stderr)


class Recorded:
    """The result of `record`, once its block has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Events in the recording.
        self.events = 0
        #: Blocks handed out or taken back that the ring lost; 0 is all there.
        self.lost = 0
        #: Whether torch ran out of memory, be it that the program caught it.
        self.out_of_memory = False

    @property
    def recording(self) -> Recording:
        """The recording."""
        return Recording(self.path)

    def __repr__(self) -> str:
        return f"<tonnage.Recorded: {self.path}, {self.events} events, {self.lost} lost>"
