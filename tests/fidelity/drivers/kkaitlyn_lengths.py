# SPDX-License-Identifier: MIT OR Apache-2.0
"""The published function for one length, called for each length as the published traces show: forward passes of 128,
256 and 512 tokens, then whole steps, in one process. Each published trace but the first begins with the segments that
the call before left: the cache was emptied when the recording had begun, as the script of the commits before does."""

import importlib.metadata

import torch

# The repository is not installed as a package, and reads its version.
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0" if name.startswith("cs336") else version(name)
from cs336_systems import benchmark  # noqa: E402

torch.set_float32_matmul_precision("high")
record = torch.cuda.memory._record_memory_history


def record_and_empty(enabled="all", **more):
    record(enabled, **more)
    if enabled:
        torch.cuda.empty_cache()


torch.cuda.memory._record_memory_history = record_and_empty
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
