# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs a finetuning script of lit-gpt for two iterations, without its checkpoint, tokenizer and data set.

Missing parts are replaced: weights stay as they are initialised, the tokenizer gives 60 tokens, and of the data
only the length matters. The longest sample, which the script takes first, has the published length.
"""

import importlib
import sys
from pathlib import Path

import torch

source, script, model, batch, tokens = sys.argv[1:6]
quantize = sys.argv[6] if len(sys.argv) > 6 else None
sys.path.insert(0, source)
finetune = importlib.import_module(f"finetune.{script}")


class Tokenizer:
    def __init__(self, folder):
        pass

    def encode(self, text, device=None, **more):
        return torch.ones(60, dtype=torch.int64, device=device)

    def decode(self, ids):
        return ""


def sample(length):
    return {"input_ids": torch.ones(length, dtype=torch.int64), "labels": torch.ones(length, dtype=torch.int64)}


samples = {"train.pt": [sample(int(tokens)), *[sample(100) for _ in range(50)]], "test.pt": [sample(100)] * 50}
loaded = torch.load
torch.load = lambda path, *rest, **more: samples.get(Path(path).name) or loaded(path, *rest, **more)
finetune.Tokenizer = Tokenizer
finetune.check_valid_checkpoint_dir = lambda folder: None
finetune.load_checkpoint = lambda *rest, **more: None
finetune.lazy_load = lambda path: {}
# The sample text that it prints takes less memory than a training step, and needs values.
finetune.generate = lambda model, ids, **more: ids
finetune.micro_batch_size, finetune.gradient_accumulation_iters = int(batch), 2
finetune.max_iters, finetune.eval_iters, finetune.eval_max_new_tokens = 4, 2, 10
for name in dir(finetune):
    if name.startswith("save_") and callable(getattr(finetune, name)):
        setattr(finetune, name, lambda *rest, **more: None)
more = {"quantize": quantize} if quantize else {}
finetune.setup(checkpoint_dir=Path("checkpoints") / model, precision="bf16-true", out_dir=Path("made/x"), **more)
