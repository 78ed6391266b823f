# SPDX-License-Identifier: MIT OR Apache-2.0
"""How long a free and a request take: torch's real allocator, driven from C++, beside tonnage's own.

    cargo build --release && cargo build --release -p tonnage-torch -p tonnage-alloc --example torch_speed --lib
    TONNAGE=target/release/tonnage TORCH_PYTHON=.venv/bin/python PLUGIN=target/release/libtonnage_torch.so \\
        TORCH_SPEED=target/release/examples/torch_speed .venv/bin/python tests/allocator/speed.py

So many blocks are live, and then, 100,000 times, a random one is freed and a random size is requested in its place.
tonnage is measured twice: the functions that PyTorch calls in the plugin, from C++, and the crate without them. All
run the same calls with the same loop (`tests/torch/speed_allocator.py` reports what is in torch's figure) and take
turns. Nanoseconds of the processor for a pair: best round, and the median of the turns' medians.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "torch"))

from speed_allocator import ROUNDS, TURNS, build, policy_figures, torch_figures

PAIRS = 100_000
LOADS = [(1, 0), (1, 1), (1000, 1), (10_000, 1), (1000, 64), (10_000, 8)]


def calls(live, mebibytes):
    """The calls as a text that both sides read."""
    state = live

    def below(limit):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 20) % limit

    def size():
        return 512 + below(mebibytes << 20) if mebibytes else 4096

    lines = [f"a {slot} {size()} 0" for slot in range(live)]
    for _ in range(PAIRS):
        slot = below(live)
        lines += [f"f {slot}", f"a {slot} {size()} 0"]
    return "".join(f"{line}\n" for line in lines)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        print(f"ns per pair: best of {TURNS} x {ROUNDS} rounds, and the median of the turns' medians")
        print(f"{'live':>7} {'up to':>8} {'torch':>17} {'plugin':>17} {'ratio':>11} {'crate':>17}")
        for live, mebibytes in LOADS:
            trace = folder / "calls.txt"
            trace.write_text(calls(live, mebibytes))
            torch, plugin, crate = [], [], []
            for _ in range(TURNS):
                torch.append(torch_figures(program, trace, folder))
                plugin.append(torch_figures(program, trace, folder, PLUGIN=os.environ["PLUGIN"]))
                crate.append(policy_figures(trace, POLICY="tonnage"))
            best = [2 * min(turn[0] for turn in turns) for turns in (torch, plugin, crate)]
            median = [2 * statistics.median(turn[1] for turn in turns) for turns in (torch, plugin, crate)]
            figures = [f"{one:>8.1f} {other:>8.1f}" for one, other in zip(best, median)]
            ratio = f"{best[0] / best[1]:>5.1f} {median[0] / median[1]:>5.1f}"
            size = f"{mebibytes} MiB" if mebibytes else "4 KiB"
            print(f"{live:>7,} {size:>8} {figures[0]} {figures[1]} {ratio} {figures[2]}", flush=True)


if __name__ == "__main__":
    main()
