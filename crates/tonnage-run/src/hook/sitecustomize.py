# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs at the start of every Python inside `tonnage run`, and starts the package `tonnage_hook`.

Whatever goes wrong in it must not change what the user's script does: it ends the recording of stacks, not the run.
"""

import os
import signal

# An interrupt while the hook starts ends the process: Python would report one as a fatal error of its start.
_interrupted = signal.getsignal(signal.SIGINT)
if _interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

_folder = os.path.dirname(os.path.abspath(__file__))
_scope: dict[str, object] = {"__name__": "tonnage_hook.loader"}
with open(os.path.join(_folder, "tonnage_hook", "loader.py"), encoding="utf-8") as _file:
    exec(compile(_file.read(), "<tonnage>", "exec"), _scope)
_scope["install"](_folder)  # type: ignore[operator]

from tonnage_hook.process import begin, enter_script  # noqa: E402

begin(_folder)
if _interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupted)
enter_script(_folder)
