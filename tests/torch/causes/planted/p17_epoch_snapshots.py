# SPDX-License-Identifier: MIT OR Apache-2.0
"""GPT-2 of four layers; the weights of each epoch are averaged after training."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(vocab_size=32000, n_positions=512, n_embd=768, n_layer=4, n_head=12, use_cache=False)
model = GPT2LMHeadModel(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)


def snapshot():
    where = "cpu" if os.environ.get("FIXED") else "cuda"
    return {name: weight.detach().to(where, copy=True) for name, weight in model.state_dict().items()}  # <- here


def train_epoch():
    tokens = torch.randint(0, 32000, (16, 512), device="cuda")
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


snapshots = []
for epoch in range(5):
    train_epoch()
    snapshots.append(snapshot())  # <- here
average = {name: sum(s[name] for s in snapshots) / len(snapshots) for name in ("transformer.ln_f.weight",)}
