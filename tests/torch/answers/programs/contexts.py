# SPDX-License-Identifier: MIT OR Apache-2.0
"""More is in use than torch reports: other ranks opened a context on this GPU."""

import os
import subprocess
import sys

import torch

if len(sys.argv) > 1:
    device = sys.argv[1] if os.environ.get("FIXED") else "0"
    flag = torch.zeros(1, device=f"cuda:{device}")  # <- here
    print("open", flush=True)
    sys.stdin.read()
    sys.exit()
ranks = [
    subprocess.Popen([sys.executable, __file__, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for rank in range(1, 4)
]
for rank in ranks:
    rank.stdout.readline()
try:
    batches = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0") for _ in range(7)]
finally:
    for rank in ranks:
        rank.communicate()
