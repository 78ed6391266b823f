"""A Llama-3-8B-shaped model with random weights: bf16, AdamW, one sequence of 2048 tokens."""

import resource
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2
config = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rope_theta=500000.0,
    use_cache=False,
)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
tokens = torch.randint(0, config.vocab_size, (1, 2048), device="cuda")
for step in range(steps):
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    optimizer.step()
    print("weights", sum(p.numel() * p.element_size() for p in model.parameters()))
    print("gradients", sum(p.grad.numel() * p.grad.element_size() for p in model.parameters()))
    states = [value for state in optimizer.state.values() for value in state.values()]
    print("optimizer state", sum(s.numel() * s.element_size() for s in states if s.is_cuda))
    optimizer.zero_grad()
    print(f"step {step}: loss {output.loss.item()}")
print("peak allocated", torch.cuda.max_memory_allocated())
print("peak reserved", torch.cuda.max_memory_reserved())
print("host KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
