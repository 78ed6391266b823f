# SPDX-License-Identifier: MIT OR Apache-2.0
"""Generates text with a Llama of twelve layers and a cache of keys and values."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
    num_key_value_heads=4,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
prompt = torch.randint(0, 32000, (16, 1024), device="cuda")
tokens = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0
)
print(tokens.shape)
