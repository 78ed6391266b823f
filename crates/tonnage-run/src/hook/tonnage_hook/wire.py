# SPDX-License-Identifier: MIT OR Apache-2.0
# Made from the code by `cargo run --bin tonnage-reference`; edits are lost.
"""Constants, functions and notes by which the hook and the stand-in exchange facts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from typing_extensions import NotRequired, TypedDict

    DeadlockCause = Literal["waits", "ended", "absent", "differs", "behind"]

    ForeignUse = Literal["runtime", "memory", "cpu"]

    class Called(TypedDict):
        file: str
        line: int
        operation: str

    class Costs(TypedDict):
        counts: list[int]
        steps: int

    class Deadlock(TypedDict):
        behind: NotRequired[Called | None]
        called: NotRequired[Called | None]
        communicator: str
        file: str
        instead: NotRequired[Called | None]
        line: int
        number: int
        operation: str
        rank: int
        ranks: int
        waits_for: int
        why: DeadlockCause

    class Exception(TypedDict):
        message: str
        stack: list[tuple[str, str, int | None]]
        type: str

    class Failure(TypedDict):
        count: int
        error: str
        function: str
        message: str

    class Foreign(TypedDict):
        how: ForeignUse
        library: str
        name: str

    class Limitation(TypedDict):
        affects_figures: bool
        code: str
        message: str

    class Nccl(TypedDict):
        communicators: int
        high: int
        low: int

    class Sample(TypedDict):
        allocated: NotRequired[int | None]
        count: NotRequired[int | None]
        device: int
        free: int
        free_before: NotRequired[int | None]
        inactive_split: NotRequired[int | None]
        name: NotRequired[str | None]
        own: NotRequired[int | None]
        peak_allocated: NotRequired[int | None]
        peak_reserved: NotRequired[int | None]
        reserved: int
        time: int
        total: int
        uuid: NotRequired[str | None]

    class Suppressed(TypedDict):
        action: str
        count: int
        library: str

    class Values(TypedDict):
        assumed_mask: int
        reads: list[tuple[str, int, str, bool, int]]
        sized_by: list[str]
        sizes: list[tuple[str, int, str, int]]

    class Versions(TypedDict):
        cuda: NotRequired[str | None]
        environment: dict[str, str]
        python: str
        torch: str

    class Allocator(TypedDict):
        address: int

    class Uses(TypedDict):
        floors: list[int]
        is_cut: bool
        unread: int

    class Connected(TypedDict):
        address: str
        port: int

    class Resolved(TypedDict):
        addresses: list[str]
        name: str

    class Notes(TypedDict, total=False):
        allocator: Allocator
        autotuned: bool
        benchmarked: bool
        change: dict[str, Any]
        communicator: int
        connected: Connected
        costs: Costs
        deadlock: Deadlock
        differing_ranks: list[int]
        ended: bool
        exception: Exception
        failure: Failure
        foreign: Foreign
        frees_wait: int
        limitation: Limitation
        lost: int
        made_up: str
        nccl: Nccl
        oom: int
        overrun: int
        paused: bool
        plugged: bool
        rank: int
        resolved: Resolved
        sample: Sample
        stopped: str
        suppressed: Suppressed
        trouble: str
        undone_modules: list[str]
        unnamed: str
        unprotected: str
        unsampled: str
        uses: Uses
        values: Values
        versions: Versions


# Tags of records in the log of a process.
RECORD_START = 1
RECORD_TORCH = 3
RECORD_NOTE = 4
RECORD_TEXT = 7
RECORD_OWNERS = 8

# Kinds of notes in the file of blocks.
START = 0
END = 1
MOMENT = 2
OWNER = 3
HOLDER = 4
OWNER_LIST = 5
OUT_OF_MEMORY = 6

# Files of a process.
LOG_PREFIX = "process-"
BLOCKS_PREFIX = "blocks-"
BLOCKS_ENTRY = 32
BLOCKS_WINDOW = 262144

# Functions of the stand-in: types of `ctypes` of the arguments, and of the result.
FUNCTIONS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "tonnage_backward_place": (("c_char_p", "c_size_t", "c_uint32"), None),
    "tonnage_census_begin": (("c_char_p", "c_size_t"), None),
    "tonnage_census_due": (("c_uint64",), "c_bool"),
    "tonnage_census_end": (("c_char_p", "c_size_t", "c_bool"), None),
    "tonnage_costs": (("c_void_p", "c_size_t"), "c_size_t"),
    "tonnage_enter_files": ((), "c_int32"),
    "tonnage_finish_from": (("c_uint64",), None),
    "tonnage_handshake_begin": ((), "c_uint64"),
    "tonnage_handshake_end": (("c_uint64",), None),
    "tonnage_hold_stream": (("c_void_p", "c_bool"), None),
    "tonnage_join": (("c_char_p", "c_size_t"), "c_int32"),
    "tonnage_kernel_launched": (("c_void_p",), None),
    "tonnage_kernel_launches": ((), "c_uint64"),
    "tonnage_kernel_watch": (("c_uint64",), None),
    "tonnage_modes_hidden": ((), "c_uint64"),
    "tonnage_note": (("c_uint8", "c_uint64", "c_char_p", "c_size_t"), None),
    "tonnage_place": (("c_char_p", "c_size_t", "c_uint32"), "c_uint64"),
    "tonnage_rank": (("c_int64",), None),
    "tonnage_record": (("c_uint32", "c_char_p", "c_size_t"), None),
    "tonnage_serve": ((), "c_int32"),
    "tonnage_set_census": (("c_void_p",), None),
    "tonnage_set_drain": (("c_void_p",), None),
    "tonnage_set_finish": (("c_void_p",), None),
    "tonnage_torch_events": ((), "c_uint64"),
    "tonnage_values_answer": (("c_void_p", "c_size_t"), "c_size_t"),
    "tonnage_values_mark": (("c_uint64", "c_uint64", "c_uint8"), None),
    "tonnage_values_mode": (("c_int64",), None),
    "tonnage_values_pinned": (("c_uint64", "c_void_p"), "c_uint64"),
    "tonnage_values_range": (("c_uint64", "c_void_p"), "c_uint64"),
    "tonnage_values_share": (("c_uint64", "c_uint64"), None),
    "tonnage_values_state": (("c_uint64", "c_uint64"), "c_uint8"),
    "tonnage_values_unseen": ((), "c_uint64"),
}


def bind(library: Any, *names: str) -> None:
    """Gives functions of a library their signatures."""
    import ctypes

    for name in names:
        arguments, result = FUNCTIONS[name]
        function = getattr(library, name)
        function.argtypes = [getattr(ctypes, kind) for kind in arguments]
        function.restype = result and getattr(ctypes, result)
