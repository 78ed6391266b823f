# SPDX-License-Identifier: MIT OR Apache-2.0
"""Random programs of several processes, streams and kinds of memory, each run dry and held against its verdict.

`python random_programs.py COUNT` runs COUNT of them (`TONNAGE` names the command, `--first` the first seed, `--jobs`
how many run at a time). For each device, the least free memory of the verdict must equal the lowest answer that the
program itself got from cudaMemGetInfo, to the byte, and when all processes but one are gone only a context is in use.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from programs import compiled

CONTEXT = 256 << 20
# Devices of several sizes, so that some programs never meet an end and others do all the time.
CAPACITIES = [1 << 30, (2 << 30) + 12345, 24 << 30, 80 << 30]


def problems(program, seed, folder):
    """The errors in the verdict of the program with this seed, as sentences."""
    devices, capacity = 1 + seed % 3, CAPACITIES[seed // 3 % len(CAPACITIES)]
    answers, recording = folder / f"{seed}.txt", folder / f"{seed}.tonnage"
    line = [os.environ["TONNAGE"], "run", "--gpu", "rtx3090", "--gpus", devices, "--capacity", capacity]
    line += ["--context", CONTEXT, "--pass-through", folder, "--no-progress", "--json", "-o", recording]
    line += ["--", program, seed, devices, answers]
    line = [str(word) for word in line]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    recording.unlink(missing_ok=True)
    if done.returncode != 0:
        return [f"the run ended with {done.returncode}: {done.stderr.strip()}"]
    verdict = json.loads(done.stdout)
    numbers = [int(word) for word in answers.read_text().split()]
    answers.unlink()
    lowest, left = numbers[:devices], numbers[devices:]
    said = {total["device"]: total for total in verdict["devices_total"]}
    found = []
    for device in range(devices):
        least = said[device]["least_free"]
        if least != lowest[device]:
            found.append(f"GPU {device}: {least} bytes free at least by the verdict, {lowest[device]} by the program")
        if left[device] != CONTEXT:
            found.append(f"GPU {device}: {left[device]} bytes are in use at the end")
        if not said[device]["exact"]:
            found.append(f"GPU {device}: the figure is not called exact")
    return found


def check(count, first, jobs):
    """Runs programs `first` to `first + count`; the seeds of those that are wrong, with what is."""
    wrong = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        program = compiled("random_program", folder)
        with ThreadPoolExecutor(jobs) as pool:
            results = pool.map(lambda seed: (seed, problems(program, seed, folder)), range(first, first + count))
            for number, (seed, found) in enumerate(results, 1):
                if found:
                    wrong[seed] = found
                    print(f"program {seed}: {'; '.join(found)}", file=sys.stderr, flush=True)
                if number % 1000 == 0:
                    print(f"{number} programs, {len(wrong)} wrong", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    began = time.monotonic()
    wrong = check(arguments.count, arguments.first, arguments.jobs)
    seconds = time.monotonic() - began
    print(f"{arguments.count} programs, {len(wrong)} wrong, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
