# SPDX-License-Identifier: MIT OR Apache-2.0
"""The published function for one length, called for each length as the published traces show: forward passes of 128,
256 and 512 tokens, then whole steps, in one process. What one call leaves is freed in the trace of the next."""

import importlib.metadata

import torch

# The repository is not installed as a package, and asks for its version.
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0" if name.startswith("cs336") else version(name)
from cs336_systems import benchmark  # noqa: E402

torch.set_float32_matmul_precision("high")
for forward_only in (True, False):
    for tokens in (128, 256, 512):
        benchmark.run_memory_foward_fullstep(
            **benchmark.get_model_config("2.7b"),
            context_length=tokens,
            num_steps=1,
            warmup_steps=0,
            batch_size=4,
            vocab_size=10000,
            theta=10000,
            dtype=torch.float32,
            model_size="2.7b",
            mixed_precision=False,
            forward_only=forward_only,
        )
