# SPDX-License-Identifier: MIT OR Apache-2.0
"""`tonnage attach` finds the holders of a process that runs, and the process goes on as if nothing had happened.

The processes are dry runs without a history, so that nothing but the query can know the holders.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from conftest import PYTHON, TONNAGE, environment, read_table

MIB = 1 << 20

# Prints its number, then a line for each tenth of a second until the file `stop` is there.
BEGIN = """
import os, sys, threading, time
import torch


def tick(seconds=60):
    print("pid", os.getpid(), flush=True)
    for number in range(10 * seconds):
        if os.path.exists(sys.argv[1]):
            break
        print("tick", number, flush=True)
        time.sleep(0.1)
    print("end", flush=True)

"""

LIST = """
kept = [torch.ones(4 << 20, device="cuda") for _ in range(8)]
small = torch.ones(1 << 20, device="cuda")
tick()
"""

THREADS = """
def work():
    buffers = [torch.ones(4 << 20, device="cuda") for _ in range(8)]
    ready.set()
    done.wait()
    print(len(buffers), "buffers", flush=True)


ready, done = threading.Event(), threading.Event()
thread = threading.Thread(target=work)
thread.start()
ready.wait()
tick()
done.set()
thread.join()
"""

OPTIMIZER = """
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(8, 1024, device="cuda")).sum().backward()
optimizer.step()
optimizer.zero_grad()
tick()
"""

GRAPH = """
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()


def train():
    total = 0
    for _ in range(20):
        total = total + model(torch.ones(1024, 1024, device="cuda")).square().mean()
    tick()
    print(total.requires_grad, flush=True)


train()
"""

LOADER = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, number):
        return torch.ones(1024)


batches = iter(torch.utils.data.DataLoader(Data(), batch_size=64, num_workers=2))
history = [next(batches).cuda() for _ in range(64)]
tick()
"""

# The main thread waits for a lock that another thread gives back at the end.
LOCK = """
cache = {number: torch.ones(4 << 20, device="cuda") for number in range(8)}
lock = threading.Lock()
lock.acquire()


def count():
    tick()
    lock.release()


threading.Thread(target=count).start()
lock.acquire()
print("released", flush=True)
"""

# A thread is in a backward pass most of the time.
BACKWARD = """
weights = torch.ones(16 << 20, device="cuda", requires_grad=True)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(0.05)
        return gradient


def train():
    while not os.path.exists(sys.argv[1]):
        Slow.apply(weights).sum().backward()
        weights.grad = None


threading.Thread(target=train).start()
tick()
"""

# Name of the script, its text, and the name and bytes of the largest holder.
KINDS = [
    ("list", LIST, "kept", 128 * MIB),
    ("threads", THREADS, "buffers (work)", 128 * MIB),
    ("optimizer", OPTIMIZER, "optimizer", 32 * MIB),
    ("graph", GRAPH, "total (train)", 300 * MIB),
    ("loader", LOADER, "history", 16 * MIB),
    ("lock", LOCK, "cache", 128 * MIB),
    ("backward", BACKWARD, "weights", 64 * MIB),
]


class Job:
    """A dry run that waits to be attached to."""

    def __init__(self, folder, text, wait=True):
        self.folder, self.stop = folder, folder / "stop"
        script = folder / "script.py"
        script.write_text(BEGIN + text)
        line = [TONNAGE, "run", "-o", str(folder / "job.tonnage"), "--"]
        self.process = subprocess.Popen(
            [*line, PYTHON, str(script), str(self.stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self.lines = []
        self.id = int(self.until("pid ").split()[1]) if wait else None

    def until(self, start):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(start):
                return line
        raise AssertionError(f"ended: {self.lines} {self.process.stderr.read()}")

    def finish(self):
        self.stop.touch()
        output, errors = self.process.communicate(timeout=120)
        return "".join(self.lines) + output, errors

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(text, **options):
        jobs.append(Job(tmp_path, text, **options))
        return jobs[-1]

    yield start
    for one in jobs:
        one.kill()


def call(*words, timeout=120):
    return subprocess.run([TONNAGE, *map(str, words)], capture_output=True, text=True, timeout=timeout)


needs_gdb = pytest.mark.skipif(
    not shutil.which("gdb") and sys.version_info < (3, 14), reason="gdb is not installed, and Python is older than 3.14"
)


@needs_gdb
@pytest.mark.parametrize(("text", "name", "size"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])
def test_the_largest_holder_is_found_and_the_process_goes_on(job, tmp_path, text, name, size):
    one = job(text)
    recording = tmp_path / "attached.tonnage"
    done = call("attach", one.id, "--yes", "--json", "-o", recording)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    table = read_table(recording)
    holders, sizes = {}, {}
    for row in table.to_pylist():
        if row["kind"] == "initial_block":
            sizes[row["address"]] = row["size"]
        elif row["kind"] == "holder":
            holders.setdefault(row["name"], set()).add(row["address"])
    held = {key: sum(sizes[address] for address in addresses) for key, addresses in holders.items()}
    largest = max(held, key=held.get)
    assert largest == name and held[name] >= size, held
    assert answer["held"] == sum(held.values()) and answer["bytes"] >= answer["held"]
    # A backward pass holds blocks that have no name.
    assert answer["held"] >= 0.5 * answer["bytes"], (answer, held)
    explained = json.loads(call("explain", "--json", recording).stdout)
    assert explained["on_device"]["allocated"] == answer["bytes"]
    output, errors = one.finish()
    assert one.process.returncode == 0, errors
    ticks = [int(number) for number in re.findall(r"^tick (\d+)$", output, re.MULTILINE)]
    assert ticks == list(range(len(ticks)))
    rest = [line for line in output.splitlines() if not line.startswith("tick ")]
    known = r"pid \d+|end|8 buffers|True|released"
    assert all(re.fullmatch(known, line) for line in rest if line and not line.startswith((" ", "fits"))), rest
    assert "Traceback" not in output + errors
    print("stopped", answer["stopped_ms"], "ms, query", answer["query_ms"], "ms")


@needs_gdb
def test_top_lists_the_process_with_its_counters(job):
    one = job(LIST)
    listed = json.loads(call("top", "--yes", "--json").stdout)["processes"]
    (found,) = [process for process in listed if process["process_id"] == one.id]
    (device,) = found["devices"]
    assert device["allocated"] == (8 * 16 + 4) * MIB
    assert device["cached"] == device["reserved"] - device["allocated"]
    one.finish()


@needs_gdb
def test_a_main_thread_that_runs_no_python_is_left_alone(job, tmp_path):
    one = job(LIST.replace("tick()", "threading.Thread(target=tick).start()\ntime.sleep(8)"))
    done = call("attach", one.id, "--yes", "--timeout", "1", "-o", tmp_path / "attached.tonnage")
    assert done.returncode == 2 and "hint:" in done.stderr and "ran no Python" in done.stderr
    assert not (tmp_path / "attached.tonnage").exists()
    output, errors = one.finish()
    # The query was withdrawn: it does not run when the main thread wakes up.
    assert one.process.returncode == 0 and "Traceback" not in output + errors


@needs_gdb
def test_a_process_that_dies_meanwhile(job, tmp_path):
    one = job(LIST.replace("tick()", "threading.Thread(target=tick).start()\ntime.sleep(2)\nos._exit(0)"))
    done = call("attach", one.id, "--yes", "-o", tmp_path / "attached.tonnage")
    assert done.returncode == 2 and "ended" in done.stderr and "hint:" in done.stderr


def test_other_processes_are_refused_with_a_next_step(tmp_path):
    def refused(words, part):
        done = call("attach", *words)
        assert done.returncode == 2 and part in done.stderr and "hint:" in done.stderr, done.stderr

    refused([2**31 - 1, "--yes"], "there is no process")
    shell = subprocess.Popen(["sleep", "60"])
    refused([shell.pid, "--yes"], "does not run Python")
    shell.kill()
    shell.wait()
    python = subprocess.Popen([PYTHON, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    python.stdout.readline()
    refused([python.pid, "--yes"], "has not imported torch")
    refused([python.pid, "--yes", "-o", tmp_path], "has not imported torch")
    python.kill()
    python.wait()


@needs_gdb
def test_it_needs_consent_and_names_a_process_without_a_gpu(tmp_path):
    text = "import torch, time; print(flush=True); [time.sleep(0.1) for _ in range(600)]"
    python = subprocess.Popen([PYTHON, "-c", text], stdout=subprocess.PIPE)
    python.stdout.readline()
    refused = subprocess.run(
        [TONNAGE, "attach", str(python.pid)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2 and "--yes" in refused.stderr
    done = call("attach", python.pid, "--yes", "-o", tmp_path / "attached.tonnage")
    assert done.returncode == 2 and "has not used a GPU" in done.stderr, done.stderr
    assert python.poll() is None
    python.kill()
    python.wait()
