# SPDX-License-Identifier: MIT OR Apache-2.0
"""What makes a job fit: the numbers that may change are ranges and lists of Python."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tonnage import _tonnage
from tonnage._ask import Error, flags
from tonnage._dry_run import words_of
from tonnage._recording import PathLike, Size
from tonnage._results import Fit


def fit(
    command: PathLike | Sequence[PathLike],
    *,
    gpu: str | Sequence[str] | None = None,
    gpus: int = 1,
    shard: bool = False,
    capacity: Size | None = None,
    margin: Size | None = None,
    allow: str = "algorithm",
    stop_after: str | None = None,
    output: PathLike | None = None,
    force: bool = False,
    jobs: int | None = None,
    allow_real_gpu: bool = False,
    side_effects: bool = False,
    cwd: PathLike | None = None,
    env: Mapping[str, str] | None = None,
    **values: Iterable[object],
) -> Fit:
    """Finds the largest number with which a job fits, or the changes that make it fit.

    `fit(["train.py", "--batch-size", "{batch}"], gpu="rtx4090", batch=range(1, 257))` finds the largest batch: a range
    is searched, a list is tried one by one. A name that stands in no word of the command is a constant of the script:
    `fit(["train.py"], batch_size=range(1, 65))`. Without numbers, changes to the program are tried where the job does
    not fit; `allow` limits their effect on its mathematics: "none", "nothing", "rounding", "algorithm". Several
    names of GPUs, or "any", find the GPUs on which the job fits. With `shard` the model is also spread over `gpus`
    GPUs. The job changes no file and uploads nothing, unless `side_effects=True`.

    That nothing fits is an answer and no exception; `Error` is raised if the job could not be started.
    """
    words = words_of(command, cwd)
    constants = []
    for name, value in values.items():
        placeholder = f"{{{name}}}"
        text = f"{{{name}={_written(name, value)}}}"
        place = next((number for number, word in enumerate(words) if placeholder in word), None)
        if place is None:
            constants.append(f"{name}={text}")
        else:
            words[place] = words[place].replace(placeholder, text, 1)
    folder = None if cwd is None else os.fspath(cwd)
    with tempfile.TemporaryDirectory(prefix="tonnage-") as scratch:
        drawn = Path(scratch) / "fit.svg"
        options = flags(
            gpu=gpu if gpu is None or isinstance(gpu, str) else ",".join(gpu),
            gpus=gpus,
            shard=shard or None,
            capacity=capacity,
            margin=margin,
            allow=allow,
            let=constants,
            stop_after=stop_after,
            output=output,
            force=force or None,
            jobs=jobs,
            allow_real_gpu=allow_real_gpu,
            side_effects=side_effects or None,
            picture=drawn,
            no_progress=True,
        )
        answer = _tonnage.dry_run(["tonnage", "fit", *options, "--", *words], folder, list((env or {}).items()))
        if len(answer) == 2:
            raise Error(*answer)
        return Fit((answer[0], json.loads(answer[1] or "{}"), answer[2] or ""), drawn.read_text())


def _written(name: str, value: Iterable[object]) -> str:
    """Values as a placeholder has them."""
    if isinstance(value, range):
        if not value or value.step < 1 or value.start < 0:
            raise Error(f"{name}={value!r} does not grow", f"a range such as {name}=range(1, 65)")
        step = f"+{value.step}" if value.step > 1 else ""
        return f"{value.start}..{value[-1]}{step}"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise Error(f"{name}={value!r} is one value", f"write it into the command, or give a list: {name}=[{value!r}]")
    listed = [str(one) for one in value]
    if not listed or any("," in one or "}" in one for one in listed):
        raise Error(f"{name}={listed!r} cannot be tried one by one", "values without commas and braces")
    return ",".join(listed)
