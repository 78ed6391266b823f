# SPDX-License-Identifier: MIT OR Apache-2.0
"""How long a request or a free takes: torch's real allocator, driven from C++, beside the policy of `tonnage replay`.

    cargo build --release && cargo build --release -p tonnage-alloc --example torch_speed
    TONNAGE=target/release/tonnage TORCH_PYTHON=.venv/bin/python TORCH_SPEED=target/release/examples/torch_speed \\
        .venv/bin/python tests/torch/speed_allocator.py RECORDING…

The requests and frees of the first device of each recording go through both, the same loop around each: torch's
`raw_alloc_with_stream` and `raw_delete` (history off, nothing recorded, the CUDA calls served by the stand-in on a
device of 1 TiB), and the policy's `malloc` and `free` over a simulated device of 1 TiB. The two take turns; what
counts is time of the processor. Nothing is subtracted: torch's figure holds its locks, its table of live blocks and
the calls of `cudaGetDevice` that a request makes; the policy has no lock to take and is not called through a table of
functions. `CONF` are the settings of both.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow

ROUNDS = os.environ.get("ROUNDS", "20")
TURNS = 3


def calls(path, folder):
    """The requests and frees of a recording, as a text that both sides read."""
    if path.suffix != ".tonnage":
        imported = folder / (path.name + ".tonnage")
        command = [os.environ["TONNAGE"], "import", path, "-o", imported]
        subprocess.run(command, check=True, capture_output=True)
        path = imported
    columns = ["kind", "process", "device", "stream", "address", "requested"]
    table = pyarrow.ipc.open_stream(path.read_bytes()).read_all().select(columns)
    lines, slots, spare, streams = [], {}, [], {0: 0}
    for kind, process, device, stream, address, requested in zip(*(column.to_pylist() for column in table.columns)):
        if process != 0 or device != 0:
            continue
        if kind == "alloc" and requested:
            slot = slots[address] = spare.pop() if spare else len(slots)
            lines.append(f"a {slot} {requested} {streams.setdefault(stream, len(streams))}")
        elif kind == "free_requested" and address in slots:
            slot = slots.pop(address)
            spare.append(slot)
            lines.append(f"f {slot}")
    return "".join(f"{line}\n" for line in lines), len(streams)


def build(folder):
    """The loop around torch's allocator, compiled with the headers that the wheels bring."""
    find = "import torch, pathlib; print(pathlib.Path(torch.__file__).parent)"
    torch = Path(subprocess.check_output([os.environ["TORCH_PYTHON"], "-c", find], text=True).strip())
    headers = [torch / "include", next(torch.parent.glob("nvidia/**/cuda_runtime_api.h")).parent]
    # The runtime's wheel lacks the folder `crt`; triton, which torch needs anyway, has a copy.
    headers.append(next(torch.parent.glob("triton/**/crt/host_config.h")).parents[1])
    libraries = [torch / "lib", *{path.parent for path in torch.parent.glob("nvidia/**/libcudart.so*")}]
    program = folder / "speed_allocator"
    command = ["g++", "-O3", "-std=c++20", "-rdynamic", "-o", program, Path(__file__).with_suffix(".cpp")]
    command += [f"-isystem{folder}" for folder in headers] + [f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda", "-ldl"]
    command += [f"-Wl,-rpath,{library}" for library in libraries] + ["-Wl,--allow-shlib-undefined"]
    subprocess.run(command, check=True)
    return program


def torch_figures(program, trace, folder, **variables):
    command = [os.environ["TONNAGE"], "run", "--capacity", "1TiB", "--address-order", "ascending", "--no-progress"]
    command += ["-o", folder / "run.tonnage", "--", program, ROUNDS, trace]
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=os.environ.get("CONF", ""), **variables)
    output = subprocess.run(command, capture_output=True, text=True, env=environment)
    (folder / "run.tonnage").unlink(missing_ok=True)
    lines = [line for line in output.stdout.splitlines() if line.startswith("torch ")]
    if not lines:
        sys.exit(output.stdout + output.stderr)
    return [float(word) for word in lines[0].split()[1:3]]


def policy_figures(trace, **settings):
    environment = dict(os.environ, ROUNDS=ROUNDS, **settings)
    output = subprocess.check_output([os.environ["TORCH_SPEED"], trace], text=True, env=environment)
    return [float(word) for word in output.split()[:2]]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        print(f"ns per event: best of {TURNS} x {ROUNDS} rounds, and the median of the turns' medians")
        print(f"{'recording':44} {'calls':>7} {'streams':>7} {'torch':>15} {'policy':>13} {'ratio':>11}")
        for path in map(Path, sys.argv[1:]):
            text, streams = calls(path, folder)
            trace = folder / "calls.txt"
            trace.write_text(text)
            torch, policy = [], []
            for _ in range(TURNS):
                torch.append(torch_figures(program, trace, folder))
                policy.append(policy_figures(trace))
            best = [min(turn[0] for turn in turns) for turns in (torch, policy)]
            median = [statistics.median(turn[1] for turn in turns) for turns in (torch, policy)]
            print(
                f"{path.name:44} {text.count(chr(10)):>7} {streams:>7} {best[0]:>7.1f} {median[0]:>7.1f}"
                f" {best[1]:>6.1f} {median[1]:>6.1f} {best[0] / best[1]:>5.1f} {median[0] / median[1]:>5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
