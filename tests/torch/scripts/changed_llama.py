# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small Llama of transformers with eager attention, fine-tuned for two steps and then evaluated."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=16384,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=8,
    attn_implementation="eager",
)
model = LlamaForCausalLM(config)
# made
model.to("cuda").train()
# moved
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
# ready
words = torch.randint(16384, (4, 1024), device="cuda")
for _ in range(2):
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del loss
