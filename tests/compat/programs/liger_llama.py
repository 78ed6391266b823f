# SPDX-License-Identifier: MIT OR Apache-2.0
"""liger-kernel: its fused layers in a Llama, trained."""

import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM

apply_liger_kernel_to_llama()
config = LlamaConfig(
    hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16, vocab_size=32000
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
ids = torch.randint(0, 32000, (4, 2048), device="cuda")
for _ in range(2):
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
