# SPDX-License-Identifier: MIT OR Apache-2.0
"""The training step of train.py, changed so that it fits on a GPU with 24 GB; it still trains all weights.

The weights are bfloat16, the activations of each layer are computed again in the backward pass, and Adafactor updates
each weight as soon as its gradient is complete. The changes affect rounding and the algorithm of the optimizer.

    tonnage run --gpu rtx4090 train_fixed.py
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
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, config.vocab_size, (1, 2048))
model.train()
model.gradient_checkpointing_enable()
optimizers = {weight: torch.optim.Adafactor([weight], lr=1e-5, foreach=False) for weight in model.parameters()}


def update_weight(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()


for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(update_weight)

loss = model(input_ids=tokens, labels=tokens).loss
loss.backward()
