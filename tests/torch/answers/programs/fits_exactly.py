# SPDX-License-Identifier: MIT OR Apache-2.0
"""Takes all that is free, to the last byte."""

import torch

free, _ = torch.cuda.mem_get_info()
held = torch.empty(free, dtype=torch.uint8, device="cuda")
