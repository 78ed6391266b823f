# SPDX-License-Identifier: MIT OR Apache-2.0
"""The Trainer of transformers rotates checkpoints, resumes, and saves with safetensors."""

import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def arguments(steps):
    return TrainingArguments(
        output_dir="out", max_steps=steps, save_steps=2, save_total_limit=2, per_device_train_batch_size=2,
        report_to=[], logging_steps=1000, disable_tqdm=True,
    )  # fmt: skip


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=16))
data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 32
sys.stdout = open(os.devnull, "w")
Trainer(model=model, args=arguments(6), train_dataset=data).train()
Trainer(model=model, args=arguments(8), train_dataset=data).train(resume_from_checkpoint=True)
sys.stdout = sys.__stdout__
print("checkpoints", sorted(os.listdir("out")))
model.save_pretrained("final")
print("pretrained", sorted(os.listdir("final")), AutoModelForCausalLM.from_pretrained("final").config.n_embd)
save_file({"weight": torch.ones(4)}, "weights.safetensors")
print("safetensors", load_file("weights.safetensors")["weight"].sum())
