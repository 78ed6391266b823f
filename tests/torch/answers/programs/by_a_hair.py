# SPDX-License-Identifier: MIT OR Apache-2.0
"""Everything but 64 MiB is taken; then 66 MiB are requested."""

import torch

free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")  # <- here
more = torch.empty(66 << 20, dtype=torch.uint8, device="cuda")
