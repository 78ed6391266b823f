# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a job does to GPU memory, on a machine that needs no GPU.

    import tonnage

    verdict = tonnage.dry_run(["train.py"], gpu="a100-40gb")
    print(verdict)                      # does it fit, by how much, who holds the memory
    print(verdict.recording.explain())  # why, and what would help

Every answer is that of the `tonnage` command with the same options: `print` shows its text, `.to_dict()` has its JSON.
"""

import typing as _typing

from tonnage._ask import Error
from tonnage._dry_run import dry_run
from tonnage._fit import fit
from tonnage._record import Recorded, record
from tonnage._recording import Recording, load
from tonnage._results import (
    Category,
    Change,
    Diff,
    Explanation,
    Finding,
    Fit,
    Fix,
    Holder,
    Info,
    OtherAllocator,
    Place,
    Plan,
    Replay,
    Replayed,
    Report,
    Result,
    Timeline,
    Trial,
    Tuning,
    Verdict,
)
from tonnage._tonnage import VERSION as __version__

__all__ = [
    "Category",
    "Change",
    "Diff",
    "Error",
    "Explanation",
    "Finding",
    "Fit",
    "Fix",
    "Holder",
    "Info",
    "OtherAllocator",
    "Place",
    "Plan",
    "Recorded",
    "Recording",
    "Replay",
    "Replayed",
    "Report",
    "Result",
    "Timeline",
    "Trial",
    "Tuning",
    "Verdict",
    "__version__",
    "dry_run",
    "fit",
    "load",
    "record",
]


def load_ipython_extension(shell: _typing.Any) -> None:
    """Called by `%load_ext tonnage`: gives notebooks the cell magic `%%tonnage`."""
    from tonnage import notebook

    notebook.register(shell)
