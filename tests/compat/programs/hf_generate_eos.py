# SPDX-License-Identifier: MIT OR Apache-2.0
"""generate() with an end token: when it stops depends on values, but never later than the limit."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6)).cuda().eval()
prompt = torch.randint(5, 1000, (4, 32), device="cuda")
out = model.generate(prompt, max_new_tokens=48, do_sample=True, pad_token_id=50256)
assert 32 < out.shape[1] <= 80, out.shape
print(f"done, at most 80 tokens, {torch.cuda.max_memory_allocated()} bytes at most")
