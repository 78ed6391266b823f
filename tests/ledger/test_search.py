# SPDX-License-Identifier: MIT OR Apache-2.0
"""A search of `tonnage fit` that is interrupted shows what it found out."""

import os
import signal
import subprocess
import sys
import tempfile
import time

# It needs more than the GPU has. Its first try of a change ends, the second one waits.
NEEDY = """
import ctypes, sys, time
with open("runs", "a") as file:
    file.write("x")
if len(open("runs").read()) > 4:
    open("begun", "w").close()
    time.sleep(300)
if ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(20 << 30)):
    sys.exit("out of memory")
"""


def test_an_interrupted_search_shows_what_was_tried(tmp_path):
    (tmp_path / "needy.py").write_text(NEEDY)
    line = [os.environ["TONNAGE"], "fit", "--gpu", "rtx3060", "--jobs", "1", "--show", "1", "--no-progress", "--"]
    # A job that begins with Python is to have torch, which is not needed here.
    line += ["sh", "-c", 'exec "$@"', "sh", sys.executable, "needy.py"]
    environment = {**os.environ, "TONNAGE_PASS_THROUGH": tempfile.gettempdir()}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as search:
        deadline = time.monotonic() + 120
        while not (tmp_path / "begun").exists() and search.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "begun").exists()
        search.send_signal(signal.SIGINT)
        shown, _ = search.communicate(timeout=60)
    lines = shown.splitlines()
    assert lines[0] == "the search was interrupted before a proposal was found", shown
    assert any("does not fit" in line for line in lines), shown
    assert any(line.split()[:2] == ["tried", "checkpointing"] for line in lines), shown
