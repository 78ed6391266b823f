# SPDX-License-Identifier: MIT OR Apache-2.0
"""What questions are answered with.

A result is the JSON of the command with names: what is needed most has a property, everything is in `to_dict()`.
`print` shows the command's text, a notebook shows tables and pictures, and a result is true if the answer is yes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tonnage import _ask, _picture
from tonnage._picture import size

if TYPE_CHECKING:
    import pyarrow

    from tonnage._ask import Reply
    from tonnage._recording import Recording

Row = TypeVar("Row", bound="_Row")


class Result:
    """An answer: text for people, a dictionary for programs, a picture for notebooks."""

    #: What `to_arrow` and the notebook make a table of.
    _table: ClassVar[str] = ""

    def __init__(self, reply: Reply) -> None:
        self._code, self._data, self._text = reply

    def __bool__(self) -> bool:
        """Whether the answer is yes: it fits, it completes, nothing failed."""
        return self._code == 0

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<tonnage.{type(self).__name__}: {self._text.splitlines()[0] if self._text else 'no text'}>"

    def to_dict(self) -> dict[str, Any]:
        """All of it, as `--json` of the command prints it; `schema_version` is the form."""
        return self._data

    def to_arrow(self) -> pyarrow.Table:
        """The rows of the answer as a table of pyarrow."""
        return _ask.pyarrow().Table.from_pylist([_flat(row) for row in self._rows()])

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        return self._data.get(self._table, []) if self._table else [self._data]

    def _repr_html_(self) -> str:
        return _picture.words(self._text)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Columns for what is nested one below the other; lists stay as they are."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}_"))
        else:
            flat[prefix + name] = value
    return flat


class _Row:
    """A part of a result; what a later version adds is left out."""

    @classmethod
    def _from_json(cls: type[Row], data: Mapping[str, Any]) -> Row:
        values: dict[str, Any] = {one.name: data.get(one.name) for one in fields(cls)}  # type: ignore[arg-type]
        if values.get("place") is not None:
            values["place"] = Place._from_json(values["place"])
        return cls(**values)

    @classmethod
    def _all(cls: type[Row], rows: Iterable[Mapping[str, Any]]) -> list[Row]:
        return [cls._from_json(row) for row in rows]


@dataclass(frozen=True)
class Place(_Row):
    """A line of a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Category(_Row):
    """Bytes by kind: weights, gradients, optimizer state, activations, …"""

    category: str
    bytes: int
    #: How many of them torch itself reported; the rest is inferred.
    exact_bytes: int
    blocks: int


@dataclass(frozen=True)
class Holder(_Row):
    """A holder of memory at the peak."""

    bytes: int
    blocks: int
    category: str
    #: "exact" or "inferred".
    known: str
    place: Place | None
    module: str | None
    shape: str | None
    #: The holder, where Python was queried: sort, name, function and place.
    held_by: dict[str, Any] | None


@dataclass(frozen=True)
class Finding(_Row):
    """Something that was found, with the code of its page: `tonnage explain TN203`."""

    code: str
    title: str
    sentence: str
    bytes: int
    #: The line to look at: where the memory is held, or else where it is made.
    place: Place | None
    #: "exact" or "inferred".
    known: str
    #: The holder of the memory, where Python was queried.
    held_by: dict[str, Any] | None


@dataclass(frozen=True)
class Fix(_Row):
    """A proposal, and its evidence."""

    code: str
    advice: str
    #: A setting to paste, if it is one.
    paste: str | None
    #: "replayed" with PyTorch's allocator, or "computed" by leaving blocks out.
    proof: str
    shown: str
    #: What the peaks are of: "reserved" or "allocated".
    measure: str
    peak_before: int
    #: At most this.
    peak_after: int
    #: At least this; the same where the recording leaves no room for doubt.
    peak_after_least: int
    #: Of a job that did not fit: "fits", "fits_only_if" what is not counted takes less than `room`, "does_not_fit", or
    #: "unknown".
    outcome: str
    #: The bytes below which what is not counted has to stay, for "fits_only_if".
    room: int | None
    #: Whether this holds to the end of the job, or only past the request that failed.
    whole_job: bool
    #: Whether the program then computes something else.
    changes_result: bool
    #: Whether the figures are estimates.
    estimate: bool


@dataclass(frozen=True)
class Trial(_Row):
    """A setting of PyTorch's allocator, tried by replay."""

    #: The value for PYTORCH_CUDA_ALLOC_CONF; empty is the default.
    conf: str
    recorded: bool
    completes: bool
    peak_reserved: int
    #: Bytes of the smallest device on which it completes.
    smallest: int | None
    driver_calls: int
    retries: int


@dataclass(frozen=True)
class OtherAllocator(_Row):
    """An allocator that is not PyTorch's, tried by replay."""

    #: Its name, as `Recording.replay` takes it.
    allocator: str
    completes: bool
    peak_reserved: int
    #: Bytes of the smallest device on which it completes.
    smallest: int | None
    driver_calls: int
    retries: int


@dataclass(frozen=True)
class Replayed(_Row):
    """How one allocator served a recording, on one device of one process."""

    allocator: str
    #: Whether it is the setting that was recorded.
    recorded: bool
    #: "exact" for PyTorch's allocator; others are approximations.
    fidelity: str
    completes: bool
    peak_allocated: int
    peak_reserved: int
    #: Bytes of the smallest device on which it completes, if it was looked for.
    smallest: int | None
    process: int
    device: int


@dataclass(frozen=True)
class Change(_Row):
    """A figure before and after."""

    what: str
    before: int
    after: int
    #: The line after, or before if it is gone.
    line: int | None

    @property
    def delta(self) -> int:
        """Bytes more, or less."""
        return self.after - self.before


class Timeline(Result):
    """Bytes over time by category: 240 stretches of the recording, each at its fullest moment."""

    _table = "timeline"

    @property
    def peak_allocated(self) -> int:
        """Most bytes in PyTorch's blocks."""
        return max((row["allocated"] for row in self._rows()), default=0)

    @property
    def peak_reserved(self) -> int:
        """Most bytes that PyTorch held from the driver."""
        return max((row["reserved"] for row in self._rows()), default=0)

    def _repr_html_(self) -> str:
        return _picture.timeline(self._data)


class Info(Result):
    """The contents of a recording, and how certain they are."""


class Explanation(Result):
    """Why a recording needs what it needs, the owners of the bytes, and what would help."""

    _table = "holders"

    def __bool__(self) -> bool:
        return self.outcome == "ran"

    @property
    def outcome(self) -> str:
        """ "ran" or "out_of_memory"."""
        return self._data["outcome"]

    @property
    def allocated(self) -> int:
        """Bytes in PyTorch's blocks at the moment that is explained."""
        return self._data["on_device"]["allocated"]

    @property
    def used(self) -> int:
        """Bytes of the device in use then: blocks, cache, context, and what is past PyTorch."""
        device = self._data["on_device"]
        return sum(device[part] or 0 for part in ("allocated", "cached", "context", "outside"))

    @property
    def categories(self) -> list[Category]:
        """The owners of the bytes."""
        return Category._all(self._data["categories"])

    @property
    def holders(self) -> list[Holder]:
        """The holders, by line and category, the largest first."""
        return Holder._all(self._data["holders"])

    @property
    def need(self) -> dict[str, Any] | None:
        """The need of the whole job, where it was run once more on a device without a limit."""
        return self._data["need"]

    @property
    def findings(self) -> list[Finding]:
        """The findings, the cause first."""
        return Finding._all(self._data["findings"])

    @property
    def fixes(self) -> list[Fix]:
        """The proposals, all replayed or computed on this recording."""
        return Fix._all(self._data["fixes"])


class Replay(Result):
    """A recording under other allocators, settings or devices. True if the first of them completes."""

    @property
    def allocators(self) -> list[Replayed]:
        """How each served it, for each process and device."""
        return Replayed._all(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                **one,
                "completes": one["outcome"]["kind"] == "completes",
                "smallest": (one.get("smallest") or {}).get("bytes"),
                "process": track["process"],
                "device": track["device"],
            }
            for track in self._data["tracks"]
            for one in track["allocators"]
        ]

    def _repr_html_(self) -> str:
        rows = [
            (
                one.allocator + (" (recorded)" if one.recorded else ""),
                "completes" if one.completes else "out of memory",
                size(one.peak_reserved),
                size(one.smallest),
                one.fidelity,
            )
            for one in self.allocators
        ]
        names = ("allocator", "outcome", "reserved at most", "smallest device", "known")
        return _picture.table(names, rows)


class Tuning(Result):
    """The setting of PyTorch's allocator that serves a recording best. True if it fits with it."""

    @property
    def advice(self) -> str:
        """ "makes_it_fit", "saves", "keep_it", "memory_is_short" or "nothing_fits"."""
        return self._data["advice"]

    @property
    def tried(self) -> int:
        """Settings that were replayed."""
        return self._data["tried"]

    @property
    def baseline(self) -> Trial:
        """The setting of the recording."""
        return Trial._from_json(self._data["baseline"])

    @property
    def best(self) -> Trial | None:
        """The best setting."""
        best = self._data["best"]
        return None if best is None else Trial._from_json(best)

    @property
    def runners_up(self) -> list[Trial]:
        """The trials after it."""
        return Trial._all(self._data["runners_up"])

    @property
    def own_allocator(self) -> OtherAllocator:
        """tonnage's own allocator, which no setting turns on: `tonnage.torch.install()` does."""
        return OtherAllocator._from_json(self._data["own"])

    def _rows(self) -> list[dict[str, Any]]:
        best = self._data["best"]
        return [self._data["baseline"], *([best] if best else []), *self._data["runners_up"]]


class Diff(Result):
    """Two recordings side by side: by category, phase and line."""

    _table = "lines"

    @property
    def totals(self) -> list[Change]:
        """Peaks and other sums."""
        return Change._all(self._data["totals"])

    @property
    def categories(self) -> list[Change]:
        """The owners of the bytes at the peak."""
        return Change._all(self._data["categories"])

    @property
    def lines(self) -> list[Change]:
        """Lines of the program, at the peak."""
        return Change._all(self._data["lines"])


class Plan(Result):
    """Where each buffer of a recording would lie if all lives were known beforehand."""

    @property
    def peak(self) -> int:
        """Bytes that the plan needs, all groups together."""
        return sum(group["peak"] for group in self._data["groups"])

    @property
    def lower_bound(self) -> int:
        """Bytes that no plan can be below."""
        return sum(group["lower_bound"] for group in self._data["groups"])

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"process": group["process"], "device": group["device"], **buffer}
            for group in self._data["groups"]
            for buffer in group["buffers"]
        ]


class Report(Result):
    """An HTML page that was written; a notebook shows it."""

    @property
    def path(self) -> str:
        """Where it is."""
        return self._data["file"]

    def __str__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<tonnage.Report: {self.path}>"

    def _repr_html_(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            page = escape(file.read(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:760px;border:0"></iframe>'


class Fit(Result):
    """The changes that make a job fit."""

    _table = "rows"

    def __init__(self, reply: Reply, picture: str) -> None:
        super().__init__(reply)
        self._drawn = picture

    @property
    def picture(self) -> str:
        """The need of each variant beside the memory of the GPU, as SVG; a notebook shows it."""
        return self._drawn

    def _repr_html_(self) -> str:
        return self._drawn + _picture.words(self._text)

    @property
    def is_found(self) -> bool:
        """Whether something fits, by itself or with changes."""
        return bool(self._data["found"])

    @property
    def largest(self) -> int | None:
        """The largest value of the number that was searched, for the first combination of the others."""
        searched = self._data.get("searched")
        for row in self._data["rows"]:
            if searched and row["largest"]:
                return int(dict(row["largest"]["values"])[searched])
        return None

    @property
    def command(self) -> str | None:
        """The command that fits, with the largest value."""
        fitting = (row["largest"]["command"] for row in self._data["rows"] if row["largest"])
        return next(fitting, None)

    @property
    def changes(self) -> list[list[str]]:
        """The names of the changes that make it fit, a list for each proposal, by what they add to a step."""
        found = self._data.get("remedies") or {}
        return [list(remedy["changes"]) for remedy in found.get("fitting", [])]

    @property
    def gpus(self) -> list[str]:
        """The GPUs on which it fits, the smallest first."""
        return [row["gpu"] for row in self._data.get("gpus", []) if row["fits"]]


class Verdict(Result):
    """How a dry run ended. True if it fits."""

    _table = "devices"

    def __init__(self, reply: Reply, recording: Recording, output: str) -> None:
        super().__init__(reply)
        self._recording = recording
        self._output = output

    @property
    def outcome(self) -> str:
        """ "fits", "uncertain" (ran to its end with less headroom than the margin), "does_not_fit", "interrupted",
        "failed" (not because of memory), "no_device" (no use of CUDA) or "not_covered" (a use of CUDA that a dry run
        cannot follow, without PyTorch)."""
        return self._data["outcome"]

    @property
    def fits(self) -> bool:
        """Whether the job ran to its end on the GPU and left the margin free."""
        return self.outcome in ("fits", "no_device")

    @property
    def peak(self) -> int:
        """Most bytes in use on the fullest device, by all processes: PyTorch's, the context and the rest."""
        return max((device["most_in_use"] for device in self._data["devices_total"]), default=0)

    @property
    def need(self) -> int | None:
        """Bytes of a GPU on which a job that does not fit would, as far as it is known."""
        return self._data["need"]["bytes"] if self._data["need"] else None

    @property
    def capacity(self) -> int:
        """Bytes of the GPU."""
        return self._data["capacity"]["bytes"]

    @property
    def recording(self) -> Recording:
        """The recording, for further queries."""
        return self._recording

    @property
    def output(self) -> str:
        """The output of the job, if it was captured."""
        return self._output

    def explain(self) -> Explanation:
        """Why it ran out, or what makes the peak, and what would help."""
        return self._recording.explain()

    def _repr_html_(self) -> str:
        parts = [_picture.words(self._text)]
        if self._data["devices"]:
            parts.insert(0, self._recording.timeline()._repr_html_())
        return "".join(parts)
