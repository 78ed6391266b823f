# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processor time of a training with and without `tonnage record`.

    TONNAGE=target/debug/tonnage TORCH_PYTHON=.venv/bin/python .venv/bin/python tests/torch/record_overhead.py [ROUNDS]

The stand-in is the GPU of both, so no kernel takes time and all of the time is the host's: the share of the recorder is
the largest there can be. The two alternate, and the least of the rounds counts. The start of Python and torch is
in both; the time of a step is measured inside.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TONNAGE = os.path.abspath(os.environ.get("TONNAGE", "target/debug/tonnage"))
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)

TRAIN = """
import time, torch
from torch import nn
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
model = nn.TransformerEncoder(layer, 6).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(16, 128, 512, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(20):
    step()
started = time.process_time()
for _ in range(400):
    step()
print((time.process_time() - started) / 400)
"""


def seconds(command, folder):
    """Processor seconds of a step and of the whole command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(done.stdout), after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(rounds, folder):
    (folder / "train.py").write_text(TRAIN)
    plain = [PYTHON, "train.py"]
    recorded = [TONNAGE, "record", "--force", "-o", "train.tonnage", "--", *plain]
    pairs = [(seconds(plain, folder), seconds(recorded, folder)) for _ in range(rounds)]
    step, whole = ([min(one[side][index] for one in pairs) for side in (0, 1)] for index in (0, 1))
    size = (folder / "train.tonnage").stat().st_size
    print(f"a step: {step[0] * 1e3:.2f} ms without, {step[1] * 1e3:.2f} ms with: {step[1] / step[0]:.2f} times")
    print(f"the whole command: {whole[0]:.1f} s without, {whole[1]:.1f} s with: {whole[1] / whole[0]:.2f} times")
    print(f"the recording: {size / 420 / 1024:.1f} KiB a step")


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    if "TONNAGE_RUN" in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            measure(rounds, Path(folder))
    else:
        with tempfile.TemporaryDirectory() as folder:
            # The hook of the dry run would measure itself.
            inner = ["env", "-u", "PYTHONPATH", sys.executable, os.path.abspath(__file__), str(rounds)]
            outer = [TONNAGE, "run", "--no-progress", "--gpu", "rtx3090", "-o", f"{folder}/outer.tonnage", "--", *inner]
            done = subprocess.run(outer, stdout=subprocess.PIPE, text=True, check=False)
            print("\n".join(line for line in done.stdout.splitlines() if "times" in line or "KiB a step" in line))
