# SPDX-License-Identifier: MIT OR Apache-2.0
"""Recordings to try things on, and the scripts they were made of.

    from tonnage import examples, load

    print(load(examples.path("oom")).explain())

`train` trains and fits, `oom` serves (`serve.py`) and runs out of memory. Both are dry runs on an RTX 3090 with torch
2.15: `tonnage run --gpu rtx3090 -- python train.py`. `python -m tonnage.examples` copies all of it to a folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tonnage._ask import Error

__all__ = ["copy", "names", "path"]

_FOLDER = Path(__file__).parent
_SCRIPTS = ("serve.py", "train.py")


def names() -> list[str]:
    """The recordings there are."""
    return sorted(file.stem for file in _FOLDER.glob("*.tonnage"))


def path(name: str) -> Path:
    """Where a recording is: "train" or "oom"."""
    file = _FOLDER / f"{name}.tonnage"
    if name not in names():
        raise Error(f"there is no example {name!r}", f"there are {', '.join(names())}")
    return file


def copy(folder: str | Path = ".") -> list[Path]:
    """Copies recordings and scripts to a folder; a file that is already there is left as it is."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    copies = []
    for source in [*map(path, names()), *(_FOLDER / script for script in _SCRIPTS)]:
        file = target / source.name
        if not file.exists():
            shutil.copyfile(source, file)
            copies.append(file)
    return copies
