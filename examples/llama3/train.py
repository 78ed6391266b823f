# SPDX-License-Identifier: MIT OR Apache-2.0
"""One training step of Llama 3 8B with random weights: float32 weights, autocast to bfloat16, and AdamW.

    tonnage run --gpu h100-80gb train.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=8192,
    use_cache=False,
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, config.vocab_size, (1, 2048))
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(input_ids=tokens, labels=tokens).loss
loss.backward()
optimizer.step()
optimizer.zero_grad()
