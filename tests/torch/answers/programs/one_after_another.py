# SPDX-License-Identifier: MIT OR Apache-2.0
"""Three processes, one after another: each has the whole GPU to itself."""

import subprocess
import sys

PART = "import torch; held = torch.empty(5 << 30, dtype=torch.uint8, device='cuda')"
for _ in range(3):
    subprocess.run([sys.executable, "-c", PART], check=True)
