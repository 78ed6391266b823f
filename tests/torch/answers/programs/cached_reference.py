# SPDX-License-Identifier: MIT OR Apache-2.0
"""The model was deleted, and its memory did not come back: a cache still refers to it."""

import functools
import os

import torch
from torch import nn


def load():
    with torch.device("cuda"):
        return nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(12)])  # <- here


@functools.lru_cache
def width(model):
    return model[0].in_features


model = load()
model(torch.zeros(16, width(model), device="cuda"))
del model
if os.environ.get("FIXED"):
    width.cache_clear()
model = load()
model(torch.zeros(16, width(model), device="cuda"))
