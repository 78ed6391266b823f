# SPDX-License-Identifier: MIT OR Apache-2.0
"""Perplexity of a small Llama on text of 2048 tokens."""

import os

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTH, VOCABULARY = 8, 2048, 50304
config = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
    use_cache=False,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()


def total_loss(tokens):
    logits = model(tokens).logits
    return F.cross_entropy(logits.float().flatten(0, 1), tokens.roll(-1, 1).flatten(), reduction="sum")  # <- here


@torch.no_grad()
def perplexity(batches):
    total = torch.zeros((), device="cuda")
    for _ in range(batches):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")
        for part in tokens.split(1 if os.environ.get("FIXED") else BATCH):
            total += total_loss(part)
    return (total / (batches * BATCH * LENGTH)).exp()


print(perplexity(3).shape)
