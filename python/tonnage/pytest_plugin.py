# SPDX-License-Identifier: MIT OR Apache-2.0
"""Budgets for GPU memory in pytest, without a GPU.

    @pytest.mark.tonnage(gpu="a100-40gb", peak_used="36 GiB")
    def test_training_fits():
        train(steps=2)

The test runs dry in a separate process. It fails if its body fails, if it does not fit on the GPU, or if its peak
(`peak_used`: all that is in use on the device) or what PyTorch reserves (`reserved`) is above the limit; the failure
explains itself. It changes no file and uploads nothing, unless `side_effects=True`. Recordings are kept in
`--tonnage-recordings FOLDER`, if that is given.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from tonnage import Verdict

#: Set inside of the dry run, where the test runs for real.
_INSIDE = "TONNAGE_PYTEST_INSIDE"
_OPTIONS = ("gpu", "gpus", "capacity", "margin", "peak_used", "peak", "reserved", "side_effects")
#: As the command reads them.
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}{rest}": 1 << 10 * power for power, letter in enumerate("kmgt", 1) for rest in ("", "ib")}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tonnage", "GPU memory without a GPU")
    group.addoption(
        "--tonnage-recordings", metavar="FOLDER", help="keep the recordings of tests marked `tonnage` in this folder"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "tonnage(gpu, gpus=1, capacity=None, margin=None, peak_used=None, reserved=None, side_effects=False): "
        "run the test dry on this GPU, "
        "and fail if it does not fit or is above a limit",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Takes the place of a marked test; fixtures and body then run inside of the dry run only."""
    mark = item.get_closest_marker("tonnage")
    if mark is None or os.environ.get(_INSIDE) or not isinstance(item, pytest.Function):
        return
    item.fixturenames.clear()
    item._fixtureinfo.name2fixturedefs.clear()
    item.funcargs = {}
    item.runtest = lambda: _run_dry(item, mark)  # type: ignore[method-assign]
    item.setup = lambda: None  # type: ignore[method-assign]


def _run_dry(item: pytest.Function, mark: pytest.Mark) -> None:
    import tonnage

    options = _options(mark)
    if "peak" in options:
        # In tonnage.toml it was the name of another figure.
        item.warn(pytest.PytestWarning("`peak` of the mark `tonnage` is the older name of `peak_used`"))
        options.setdefault("peak_used", options.pop("peak"))
    peak = _bytes(options.pop("peak_used", None), "peak_used")
    reserved = _bytes(options.pop("reserved", None), "reserved")
    output = _output(item)
    root = item.config.rootpath
    # The same test, by the same rules, in a process whose only difference is the GPU.
    words = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    words += [f"--rootdir={root}", *_inherited(item.config), item.nodeid]
    try:
        verdict = tonnage.dry_run(
            words,
            **options,
            output=output,
            force=True,
            stop_at_oom=True,
            capture=True,
            progress=False,
            cwd=root,
            env={_INSIDE: "1"},
        )
    except tonnage.Error as error:
        pytest.fail(str(error), pytrace=False)
    if verdict.outcome != "failed" and re.search(r"^1 skipped", verdict.output, re.MULTILINE):
        pytest.skip("skipped inside of the dry run")
    failure = _failure(verdict, peak, reserved)
    if failure is None:
        return
    if failure.explained:
        item.add_report_section("call", "dry run", verdict.output)
        pytest.fail(f"{failure.sentence}\n\n{verdict.explain()}", pytrace=False)
    pytest.fail(f"{failure.sentence}\n\n{verdict.output}", pytrace=False)


class _Failure(NamedTuple):
    """Why a test fails."""

    sentence: str
    #: Whether it is one of memory, which the recording explains.
    explained: bool = True


def _failure(verdict: Verdict, peak: int | None, reserved: int | None) -> _Failure | None:
    from tonnage._picture import size

    data = verdict.to_dict()
    gpu = data["gpu_name"]
    # pytest catches the exception and ends with code 1; the recording shows that it was memory.
    short = verdict.outcome == "failed" and any(device["out_of_memory"] for device in data["devices"])
    if verdict.outcome == "does_not_fit" or short:
        return _Failure(f"does not fit on {gpu} ({size(verdict.capacity)})")
    if verdict.outcome == "uncertain":
        margin = data["margin"]
        left, kept = size(margin["room"]), size(margin["kept"])
        return _Failure(f"may not fit on {gpu}: {left} of headroom, and {kept} must stay free for CUDA overhead")
    if verdict.outcome in ("failed", "interrupted"):
        return _Failure(f"fails on {gpu}, not because of memory", explained=False)
    if verdict.outcome == "no_device":
        return _Failure("the test did not use CUDA: nothing was held against its limits", explained=False)
    if peak is not None and verdict.peak > peak:
        above = size(verdict.peak - peak)
        return _Failure(f"the peak on {gpu} is {size(verdict.peak)}, {above} above the limit of {size(peak)}")
    most = max((device["peak_reserved"] for device in data["devices"]), default=0)
    if reserved is not None and most > reserved:
        above = size(most - reserved)
        return _Failure(f"PyTorch reserves {size(most)} on {gpu}, {above} above the limit of {size(reserved)}")
    return None


def _options(mark: pytest.Mark) -> dict[str, Any]:
    unknown = [name for name in mark.kwargs if name not in _OPTIONS]
    if mark.args or unknown or "gpu" not in mark.kwargs:
        what = f"does not know {', '.join(unknown)}" if unknown else "needs a GPU, by name"
        pytest.fail(
            f'the mark `tonnage` {what}: @pytest.mark.tonnage(gpu="a100-40gb", peak_used="36 GiB")', pytrace=False
        )
    return dict(mark.kwargs)


def _bytes(limit: int | str | None, name: str) -> int | None:
    if limit is None or isinstance(limit, int):
        return limit
    found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", limit)
    if found is not None and found[2].lower() in _UNITS:
        return int(float(found[1]) * _UNITS[found[2].lower()])
    pytest.fail(f"{name} = {limit!r} is not a size; use one such as '36 GiB'", pytrace=False)


def _output(item: pytest.Item) -> Path | None:
    folder = item.config.getoption("--tonnage-recordings")
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", item.nodeid).strip("-")
    return Path(folder).absolute() / f"{name}.tonnage"


def _inherited(config: pytest.Config) -> list[str]:
    """Options that affect how tests are found and run must be the same inside."""
    words = []
    if config.inipath is not None:
        words += ["-c", os.fspath(config.inipath)]
    for name in config.getoption("override_ini") or []:
        words += ["-o", name]
    return words
