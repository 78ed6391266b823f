# SPDX-License-Identifier: MIT OR Apache-2.0
"""Dry runs: the job is a separate process, watched and judged from here."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tonnage import _tonnage
from tonnage._ask import Error, flags
from tonnage._recording import PathLike, Recording, Size, temporary
from tonnage._results import Verdict


def dry_run(
    command: PathLike | Sequence[PathLike],
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    world_size: int | None = None,
    ranks: Sequence[int] | None = None,
    capacity: Size | None = None,
    context: Size | None = None,
    margin: Size | None = None,
    output: PathLike | None = None,
    force: bool = False,
    stop_at_oom: bool = False,
    values: bool = True,
    assume: str | None = None,
    stop_after: str | None = None,
    capture: bool | None = None,
    progress: bool = True,
    allow_real_gpu: bool = False,
    side_effects: bool = False,
    cwd: PathLike | None = None,
    env: Mapping[str, str] | None = None,
) -> Verdict:
    """Runs a job on a GPU that is not there, and reports whether it fits.

    `command` is what one would type, as a list: `["train.py", "--batch-size", "8"]`, `["torchrun", …]`. A script,
    and `python`, is run with this Python. `gpu` is a name of `tonnage gpus`; without it
    `TONNAGE_GPU` or `gpu` of tonnage.toml decides. It fits if `margin` stays free, by default the most CUDA overhead
    seen on real GPUs. The recording goes to `output`, or to a
    temporary file that lives as long as it is used; a file that is there is overwritten with `force=True` only. With
    `world_size` only the `ranks` of a job of so many run, `[0]` by default, and the others are answered. A job
    that runs out of memory is run once more on a GPU without a limit, for `verdict.need`, unless `stop_at_oom=True`.
    Small values are computed, so that what the job reads back is true, unless `values=False`; `assume="mask=30%"` is
    how much an unknown mask selects, `assume="lag=1024"` how many launches the GPU is behind. `stop_after="3steps"` or
    `"90s"` ends the job early. `capture=True` keeps what the job prints for `verdict.output`; by default it is shown.
    The job changes no file and uploads nothing, unless `side_effects=True`.

    That the job does not fit, or fails, is an answer and no exception; `Error` is raised if it could not be started.
    """
    words = words_of(command, cwd)
    path = Path(output).absolute() if output is not None else temporary(".tonnage")
    # Where stdout is not the process's own, as in a notebook, what the job prints must pass through here.
    shown_here = capture is None and _stdout_is_replaced()
    piped = bool(capture) or shown_here
    options = flags(
        gpu=gpu,
        gpus=gpus,
        world_size=world_size,
        ranks=None if ranks is None else ",".join(map(str, ranks)),
        capacity=capacity,
        context=context,
        margin=margin,
        output=path,
        force=force or output is None,
        stop_at_oom=stop_at_oom,
        values=None if values else "off",
        assume=assume,
        stop_after=stop_after,
        no_progress=piped or not progress,
        allow_real_gpu=allow_real_gpu,
        side_effects=side_effects,
    )
    recording = Recording(path, temporary=output is None)
    answer, text = _run(["tonnage", "run", *options, "--", *words], piped=piped, shown=shown_here, cwd=cwd, env=env)
    if len(answer) == 2:
        raise Error(*answer)
    code, data, text_of_verdict = answer[0], answer[1] or "{}", answer[2] or ""
    if output is None:
        # A file that goes with its object is not reported.
        told_of = ("  recording ", "  next ")
        lines = text_of_verdict.splitlines()
        text_of_verdict = "\n".join(line for line in lines if not line.startswith(told_of))
    return Verdict((code, json.loads(data), text_of_verdict), recording, text)


def words_of(command: PathLike | Sequence[PathLike], cwd: PathLike | None) -> list[str]:
    """The words of a command; a script, and `python`, is run with this Python."""
    words = _words(command, cwd)
    if words[0].endswith(".py"):
        words.insert(0, sys.executable)
    elif words[0] in ("python", "python3"):
        # Not another one that happens to be first on the path.
        words[0] = sys.executable
    return words


def _words(command: PathLike | Sequence[PathLike], cwd: PathLike | None) -> list[str]:
    """The words of a command; what cannot be one is refused before a process is started for it."""
    hint = 'use a list of words, such as dry_run(["train.py", "--batch-size", "8"])'
    if isinstance(command, (str, os.PathLike)):
        word = os.fspath(command)
        if isinstance(command, str) and len(command.split()) > 1 and not (Path(cwd or ".") / command).exists():
            # A whole line: it would be taken for the name of one file.
            listed = ", ".join(json.dumps(part) for part in command.split())
            raise Error(f"there is no file called {command!r}", f"use a list of words: dry_run([{listed}])")
        return [word]
    if callable(command):
        name = getattr(command, "__name__", "it")
        raise Error(
            f"{name} is a function, and a dry run is a separate process",
            'put it in a script and use dry_run(["script.py"])',
        )
    try:
        words = [os.fspath(word) for word in command]
    except TypeError as error:
        raise Error(f"{command!r} is not a command: {error}", hint) from None
    if not words:
        raise Error("there is no command", hint)
    return words


def _stdout_is_replaced() -> bool:
    return "ipykernel" in sys.modules and sys.stdout is not sys.__stdout__


_Answer = tuple[int, str | None, str | None] | tuple[str, str | None]


def _run(
    words: list[str], *, piped: bool, shown: bool, cwd: PathLike | None, env: Mapping[str, str] | None
) -> tuple[_Answer, str]:
    """Runs it to its end: the answer, and what the job printed if that passed through here."""
    folder = None if cwd is None else os.fspath(cwd)
    variables = list((env or {}).items())
    if not piped:
        return _tonnage.dry_run(words, folder, variables), ""
    reading, writing = os.pipe()
    lines: list[str] = []

    def listen() -> None:
        with open(reading, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                lines.append(line)
                if shown:
                    sys.stdout.write(line)

    listener = threading.Thread(target=listen, name="tonnage-output", daemon=True)
    listener.start()
    try:
        answer = _tonnage.dry_run(words, folder, variables, f"/proc/self/fd/{writing}")
    finally:
        # The job has ended, so this is the last end of the pipe.
        os.close(writing)
        listener.join()
    return answer, "".join(lines)
