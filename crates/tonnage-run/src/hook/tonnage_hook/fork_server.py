# SPDX-License-Identifier: MIT OR Apache-2.0
"""A fork server: imports what a script imports, then forks a process for each variant of a job.

It runs at the start of the interpreter that was to run the script. In the process of a variant it returns, and the
interpreter goes on with the script as usual: same `__main__`, same frames, same end. Lines of JSON on a socket
are the requests and the events.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys

from tonnage_hook.wire import bind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_POLL = 0.003
# Bytes of a descriptor.
_DESCRIPTOR = ctypes.sizeof(ctypes.c_int)
# The exit code of a process whose writes cannot be redirected.
_UNPROTECTED = 125


def serve(address: str, leave: Callable[[int], object]) -> str:
    """Serves until the other side hangs up, then leaves. In a variant it returns the folder of its hook."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    server = _Server(connection, leave)
    return server.serve()


class _Server:
    def __init__(self, connection: socket.socket, leave: Callable[[int], object]) -> None:
        self.connection = connection
        self.leave = leave
        self.library = ctypes.CDLL(None)
        bind(self.library, "tonnage_join", "tonnage_serve", "tonnage_enter_files")
        self.buffer = b""
        # Open files for the output of variants, in the order of the requests.
        self.outputs: list[int] = []
        # The request that each child carries out, by its process id.
        self.children: dict[int, Any] = {}

    def serve(self) -> str:
        # Ctrl-C at a terminal is for the variants; the server ends when the other side hangs up.
        self.interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)
        first = self._receive()
        if first is None:
            self.leave(0)
        refusal = self._prepare(first)
        torch = sys.modules.get("torch")
        asked = torch is not None and torch.cuda.is_initialized()
        self._send(ready=refusal is None, why=refusal, asked=asked)
        while True:
            request = self._receive()
            if request is None:
                self._hang_up()
            # The output of an import that waits in a buffer would be written by each child.
            sys.stdout.flush()
            sys.stderr.flush()
            # Native threads, such as those of OpenMP, are not there in a child, which would wait for them forever.
            has_threads = len(os.listdir("/proc/self/task")) > 1
            output = self.outputs.pop(0)
            child = os.fork()
            if child == 0:
                torch = sys.modules.get("torch")
                if has_threads and torch is not None:
                    torch.set_num_threads(1)
                return self._become(request, output)
            os.close(output)
            self.children[child] = request["id"]
            self._send(started=request["id"], process=child)

    def _prepare(self, plan: dict[str, Any]) -> str | None:
        """Imports; why no variant can be forked off, if so."""
        if self.library.tonnage_serve() != 0:
            return "a device was used before the script began"
        for name, value in plan["environment"].items():
            _set_variable(name, value)
        for name in plan["modules"]:
            if name in sys.modules:
                continue
            try:
                importlib.import_module(name)
            except BaseException:
                # It is imported by each variant, as without us.
                sys.modules.pop(name, None)
            if self.library.tonnage_serve() != 0:
                return f"importing {name} uses the GPU"
        threads = sys.modules.get("threading")
        others = [thread.name for thread in threads.enumerate()[1:]] if threads is not None else []
        if others:
            return f"an import starts a thread ({others[0]})"
        return None

    def _become(self, request: dict[str, Any], output: int) -> str:
        """Makes this child the process of a variant."""
        self.connection.close()
        for other in self.outputs:
            os.close(other)
        signal.signal(signal.SIGINT, self.interrupts or signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        for name, value in request["environment"].items():
            _set_variable(name, value)
        # The variant writes to its own view, which the library knows by the variables that were just set.
        if self.library.tonnage_enter_files() != 0:
            os._exit(_UNPROTECTED)
        os.environ.pop("TONNAGE_FILES_ENTER", None)
        if request["folder"] is not None:
            os.chdir(request["folder"])
        words = request["command"]
        arguments = words[request["script"] + 1 :]
        sys.argv[1:] = arguments
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = words
        line = b"".join(os.fsencode(word) + b"\0" for word in words)
        self.library.tonnage_join(line, len(line))
        return request["hook"]

    def _receive(self) -> Any:
        """The next request, or None when there will be no more. Reports meanwhile which children have ended."""
        while b"\n" not in self.buffer:
            readable, _, _ = select.select([self.connection], [], [], _POLL if self.children else None)
            if readable:
                piece = self._receive_piece()
                if not piece:
                    return None
                self.buffer += piece
            self._reap()
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def _receive_piece(self) -> bytes:
        """The next bytes. Open files that come with them are kept."""
        # A request comes with one file, and the system does not join the bytes of two such requests.
        room = socket.CMSG_SPACE(_DESCRIPTOR)
        piece, messages, _, _ = self.connection.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in messages:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.outputs.append(int.from_bytes(data[:_DESCRIPTOR], sys.byteorder))
        return piece

    def _reap(self) -> None:
        while self.children:
            child, status, usage = os.wait4(-1, os.WNOHANG)
            if child == 0:
                return
            request = self.children.pop(child, None)
            if request is not None:
                self._send(ended=request, status=status, seconds=usage.ru_utime + usage.ru_stime)

    def _send(self, **facts: object) -> None:
        self.connection.sendall(json.dumps(facts).encode() + b"\n")

    def _hang_up(self) -> None:
        for child in self.children:
            try:
                os.kill(child, signal.SIGKILL)
            except OSError:
                pass
        self.leave(0)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
