# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hugging Face: the Trainer with a callback that records its first steps.

On a machine without a GPU, try it as `tonnage run --gpu a100-40gb -- python transformers_trainer.py`.
"""

import tempfile

import torch
from tonnage.integrations.transformers import TonnageCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

# Its own model, so that nothing is fetched.
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=8192, n_positions=256))
tokens = torch.randint(0, 8192, (64, 256))
dataset = [{"input_ids": one, "labels": one} for one in tokens]
callback = TonnageCallback("transformers.tonnage", steps=3)

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=8, max_steps=5, report_to=[], save_strategy="no", disable_tqdm=True
    )
    Trainer(model, arguments, train_dataset=dataset, callbacks=[callback]).train()

print(callback.recording.explain())
