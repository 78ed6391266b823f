# SPDX-License-Identifier: MIT OR Apache-2.0
"""Generation with a model of the shape of Llama 3 8B: requests of different lengths, and a growing cache."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"), torch.inference_mode():
    model = LlamaForCausalLM(config).eval()
    for batch, prompt, new in [(8, 1024, 12), (2, 4000, 12), (12, 700, 12), (4, 2000, 12)]:
        tokens = torch.ones(batch, prompt, dtype=torch.long)
        words = torch.ones_like(tokens)
        lengths = {"max_new_tokens": new, "min_new_tokens": new}
        model.generate(tokens, attention_mask=words, **lengths, do_sample=False, pad_token_id=0)
print("peak allocated", torch.cuda.max_memory_allocated())
print("peak reserved", torch.cuda.max_memory_reserved())
