# SPDX-License-Identifier: MIT OR Apache-2.0
"""generate() of transformers: greedy, sampled, beams, with a limit of tokens; the cache as it grows."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--big", action="store_true")
parser.add_argument("--new", type=int, default=20)
arguments = parser.parse_args()
if arguments.big:
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    prompt, ways = torch.randint(5, 1000, (4, 1024), device="cuda"), {"greedy": dict(do_sample=False)}
else:
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=1000,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    prompt = torch.randint(5, 1000, (2, 16), device="cuda")
    ways = {"greedy": dict(do_sample=False), "sample": dict(do_sample=True, top_p=0.9), "beams": dict(num_beams=4)}
for name, options in ways.items():
    with torch.no_grad():
        out = model.generate(prompt, max_new_tokens=arguments.new, eos_token_id=None, pad_token_id=0, **options)
    print(name, tuple(out.shape))
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
