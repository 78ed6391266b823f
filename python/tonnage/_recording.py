# SPDX-License-Identifier: MIT OR Apache-2.0
"""A recording, and the questions it answers."""

from __future__ import annotations

import os
import pickle
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tonnage import _ask
from tonnage._ask import Error, ask, flags
from tonnage._results import Diff, Explanation, Info, Plan, Replay, Report, Timeline, Tuning

if TYPE_CHECKING:
    import pyarrow

PathLike = str | os.PathLike[str]
#: Bytes, or a text such as "24GiB".
Size = int | str


def load(source: PathLike | Mapping[str, Any]) -> Recording:
    """Opens a recording: of tonnage, a PyTorch memory snapshot (a file, or what `torch.cuda.memory._snapshot()`
    returned), a log of RMM. Nothing in the file is ever run.
    """
    if isinstance(source, Mapping):
        path = temporary(".pickle")
        path.write_bytes(pickle.dumps(dict(source), protocol=4))
        return Recording(path, temporary=True)
    path = Path(source)
    if not path.is_file():
        raise Error(f"{path} is {'a folder' if path.is_dir() else 'not there'}", "check the name; recordings are files")
    return Recording(path)


def temporary(suffix: str) -> Path:
    """A new file that someone else deletes."""
    handle, path = tempfile.mkstemp(prefix="tonnage-", suffix=suffix)
    os.close(handle)
    return Path(path)


class Recording:
    """The record of a job's GPU memory. Made by `load`, `dry_run` and `record`."""

    def __init__(self, path: Path, *, temporary: bool = False) -> None:
        self._path = path
        if temporary:
            weakref.finalize(self, path.unlink, missing_ok=True)

    @property
    def path(self) -> Path:
        """Where it is; a temporary one is gone when nothing refers to this object any more."""
        return self._path

    def __repr__(self) -> str:
        return f"<tonnage.Recording: {self._path}>"

    def _repr_html_(self) -> str:
        return self.timeline()._repr_html_()

    def info(self) -> Info:
        """The contents, and how certain they are."""
        return Info(ask("info", self._path))

    def explain(self) -> Explanation:
        """Why it ran out or what makes the peak, the owners of the bytes, and what would help."""
        return Explanation(ask("explain", self._path))

    def replay(
        self,
        *,
        alloc: str | Sequence[str] = (),
        gpu: str | None = None,
        capacity: Size | None = None,
        context: Size | None = None,
        torch: str | None = None,
        smallest: bool = True,
    ) -> Replay:
        """The results with other allocators or on another GPU.

        `alloc` names them: "recorded", "torch", "torch:SETTINGS", "cuda-malloc-async", "bfc", "tonnage", "plan";
        without it, the usual ones. `smallest=False` leaves out the search for the smallest device.
        """
        alloc = [alloc] if isinstance(alloc, str) else list(alloc)
        options = flags(alloc=alloc, gpu=gpu, capacity=capacity, context=context, torch=torch, no_smallest=not smallest)
        return Replay(ask("replay", self._path, *options))

    def tune(
        self,
        *,
        gpu: str | None = None,
        capacity: Size | None = None,
        context: Size | None = None,
        torch: str | None = None,
        threads: int | None = None,
        progress: bool = True,
    ) -> Tuning:
        """The best setting of PyTorch's allocator, out of more than 200 that are replayed."""
        options = flags(
            gpu=gpu, capacity=capacity, context=context, torch=torch, threads=threads, no_progress=not progress
        )
        return Tuning(ask("tune", self._path, *options))

    def diff(self, after: Recording | PathLike) -> Diff:
        """The growth from this recording to another, by category, phase and line."""
        return Diff(ask("diff", self._path, after.path if isinstance(after, Recording) else after))

    def plan(
        self,
        *,
        capacity: Size | None = None,
        deadline: float = 10.0,
        step: bool = False,
        threads: int | None = None,
        progress: bool = True,
    ) -> Plan:
        """Where each block would lie if all lives were known beforehand, with a bound on what is possible."""
        options = flags(capacity=capacity, deadline=deadline, step=step, threads=threads, no_progress=not progress)
        return Plan(ask("plan", self._path, *options))

    def report(
        self,
        output: PathLike | None = None,
        *,
        force: bool = False,
        compare_allocators: bool | None = None,
        full_paths: bool = False,
    ) -> Report:
        """Writes one HTML page that needs no network; its name is that of the recording, unless `output` names it.

        `compare_allocators` is whether to replay other allocators too; by default if the recording is not too long.
        """
        target = Path(output) if output is not None else Path(self._path.stem).with_suffix(".html")
        compare = None if compare_allocators is None else "always" if compare_allocators else "never"
        options = flags(output=os.fspath(target), force=force, compare_allocators=compare, full_paths=full_paths)
        return Report(ask("report", self._path, *options))

    def timeline(self) -> Timeline:
        """Bytes over time by category; a notebook draws it."""
        return Timeline(ask("report", self._path, "--text", "--compare-allocators=never"))

    def export(self, output: PathLike, *, format: str, force: bool = False) -> Path:
        """Writes it in the format of another tool: "snapshot" for pytorch.org/memory_viz, "perfetto"."""
        ask("export", self._path, *flags(output=os.fspath(output), format=format, force=force))
        return Path(output)

    def to_arrow(self) -> pyarrow.Table:
        """Every event as a row of a pyarrow table; the columns are those of the trace format."""
        arrow = _ask.pyarrow()
        with self._path.open("rb") as file:
            foreign = file.read(4) != b"\xff\xff\xff\xff"
        path = self._path
        if foreign:
            path = temporary(".tonnage")
        try:
            if foreign:
                ask("import", self._path, "--output", path, "--force")
            with arrow.OSFile(os.fspath(path)) as file:
                return arrow.ipc.open_stream(file).read_all()
        finally:
            if foreign:
                path.unlink()
