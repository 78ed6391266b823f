# SPDX-License-Identifier: MIT OR Apache-2.0
"""A mixture of experts of transformers: forward and backward; which tokens go to which expert depends on values."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM

config = MixtralConfig(
    hidden_size=1024,
    intermediate_size=3584,
    num_hidden_layers=4,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = MixtralForCausalLM(config)
ids = torch.randint(0, 32000, (2, 2048), device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
