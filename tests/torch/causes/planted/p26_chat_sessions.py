# SPDX-License-Identifier: MIT OR Apache-2.0
"""A chat server: answers requests one after another with a Llama of eight layers."""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
    max_position_embeddings=4096,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config).half().eval()

sessions = {}


@torch.inference_mode()
def answer(request, prompt, count=3):
    out = model(prompt, use_cache=True, logits_to_keep=1)
    sessions[request] = out.past_key_values  # <- here
    tokens = [out.logits.argmax(-1)]
    for _ in range(count - 1):
        out = model(tokens[-1], past_key_values=sessions[request], use_cache=True)
        tokens.append(out.logits.argmax(-1))
    if os.environ.get("FIXED"):
        del sessions[request]
    return torch.cat(tokens, 1).cpu()


for request in range(5):
    print(request, answer(request, torch.randint(0, 8192, (8, 2048), device="cuda")).shape)
