# SPDX-License-Identifier: MIT OR Apache-2.0
"""The start and the end of a process: its exits, forks, exceptions, and what is changed before the script runs.

A framework is followed by a recorder, which is made when the framework has been imported.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

from tonnage_hook.after_import import call_after_import, move_to_front
from tonnage_hook.failures import failures, swallow
from tonnage_hook.libraries import is_library
from tonnage_hook.needs import needs
from tonnage_hook.notes import write_note, write_notes_by, write_to_standin
from tonnage_hook.settings import SETTINGS, read_settings
from tonnage_hook.tracebacks import frames_of, hide_our_frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn

    from tonnage_hook.imports import Imports
    from tonnage_hook.offline import Offline
    from tonnage_hook.wire import Exception as ExceptionNote

# Ends the process without what is called at its end.
leave = os._exit
_recorder: Any = None
# Prevents uploads of this process.
_offline: Offline | None = None
_imports: Imports | None = None
# Whether this process is a fork server, which records nothing itself.
_serving = False


def _torch_imported(torch: Any) -> None:
    global _recorder
    try:
        from tonnage_hook.torch.recorder import Recorder

        _recorder = Recorder(_serving)
        write_notes_by(_recorder.note)
        _recorder.meet(torch)
    except Exception as error:
        swallow("_torch_imported", error)
        print(f"tonnage: no stacks will be recorded: {error}", file=sys.stderr)


def _name_cells(module: Any) -> None:
    from tonnage_hook.notebooks import name_cells

    name_cells(module, _after_cell)


def _after_cell(_: object = None) -> None:
    """A kernel is killed if it does not end within seconds, so nothing is left for the end."""
    if _recorder is not None:
        _recorder.after_cell()


def _redirect_safetensors(module: Any) -> None:
    from tonnage_hook.files import redirect_safetensors

    redirect_safetensors(module)


def _at_exit() -> None:
    if _imports is not None:
        _imports.write()
    if _offline is not None:
        _offline.finish()
    if _recorder is not None:
        _recorder.end()
        if _recorder.forked:
            _leave_libraries()


def _leave_libraries() -> None:
    """Has this process, a fork, end without taking apart the libraries that it shares with others: hundreds of
    thousands of objects, each of which would have to be copied first."""
    import ctypes
    import gc

    left = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and is_library(file):
            left.append(sys.modules.pop(name))
    # Nobody lets go of it again.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
    # Objects in a reference cycle at the end are not freed then: the system takes them with the process.
    gc.freeze()


def _exit_at_once(status: int) -> NoReturn:
    _at_exit()
    leave(status)


def _in_forked_child() -> None:
    failures.begin_anew(keep=_serving)
    # Where CUDA was used before, torch refuses to use it here. Where not, this may be a rank.
    if _recorder is not None and not _serving and _recorder.started:
        _recorder.forget()
    if _offline is not None:
        _offline.forget()


def _is_ended_by_tonnage() -> bool:
    """Whether `tonnage run` ends the job, because another rank failed or nothing new comes."""
    return os.path.exists(os.path.join(os.environ.get("TONNAGE_RUN", ""), "ended"))


def _report_exception(
    kind: type[BaseException], value: BaseException, traceback: TracebackType | None, _report: Any = sys.excepthook
) -> None:
    try:
        # An interrupt may come while our code runs, and an import that fails runs in a frame of ours.
        hide_our_frames(value)
        traceback = value.__traceback__
        exception: ExceptionNote = {
            "type": f"{kind.__module__}.{kind.__qualname__}",
            "message": str(value)[:4096],
            "stack": frames_of(traceback),
        }
        if _recorder is None or not _recorder.started:
            # No note has the rank of this process yet.
            rank = _recorder.rank if _recorder is not None else None
            rank = os.environ.get("RANK", "") if rank is None else rank
            if str(rank).isdecimal():
                write_note(rank=int(rank))
        write_note(exception=exception)
    except Exception as error:
        swallow("_report_exception", error)
    if _recorder is not None:
        _recorder.script_failed()
    if not (issubclass(kind, KeyboardInterrupt) and _is_ended_by_tonnage()):
        _report(kind, value, traceback)


def _hear_interrupts() -> None:
    """Lets an interrupt end the script where it was started with interrupts ignored, as shells start what runs in the
    background: `tonnage run` passes interrupts on, and only a script that receives them hands over its records."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:
        pass  # not the main thread of this interpreter


def _run_the_users_sitecustomize(here: str) -> None:
    import importlib.machinery
    import importlib.util

    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _stay_offline() -> None:
    """Has this process upload nothing."""
    global _offline
    from tonnage_hook.offline import Offline

    needs.want("offline")
    _offline = Offline(write_to_standin, needs.missing_of)
    for name, change in _offline.modules().items():
        call_after_import(name, change)


def _replace_sources() -> None:
    if SETTINGS.get("sources"):
        from tonnage_hook.sources import replace

        replace(SETTINGS["sources"])


def _serve() -> None:
    """Makes this process a fork server. Returns in the process of each variant, to go on as if it had been started."""
    global _serving
    address = os.environ.pop("TONNAGE_FORK_SERVER", None)
    if address is None:
        return
    from tonnage_hook.fork_server import serve

    _serving = True
    folder = serve(address, leave)
    _serving = False
    read_settings(folder)
    _replace_sources()
    if _recorder is not None:
        _recorder.join()
    failures.write()


def begin(folder: str) -> None:
    """Prepares the process, before anything of the user runs."""
    global _imports
    read_settings(folder)
    if SETTINGS.get("imports"):
        from tonnage_hook.imports import Imports

        _imports = Imports(os.environ)
    call_after_import("ipykernel.compiler", _name_cells)
    call_after_import("safetensors", _redirect_safetensors)
    call_after_import("torch", _torch_imported, _imports.before_torch if _imports is not None else None)
    # On a real GPU every library works, and signals are the script's own business.
    if not SETTINGS.get("record"):
        from tonnage_hook.jax import JaxFinder

        sys.meta_path.insert(1, JaxFinder())
        _hear_interrupts()
        if not SETTINGS.get("side_effects"):
            _stay_offline()
    sys.excepthook = _report_exception
    os._exit = _exit_at_once
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_in_forked_child)


def enter_script(folder: str) -> None:
    """Lets the script begin, after the user's own `sitecustomize`."""
    _run_the_users_sitecustomize(folder)
    move_to_front()
    _replace_sources()
    _serve()
