# SPDX-License-Identifier: MIT OR Apache-2.0
"""accelerate: a sharded checkpoint is loaded by device_map, with a limit, or with the rest offloaded to the host."""

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["auto", "limit", "offload"])
way = parser.parse_args().way
config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, vocab_size=32000
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="200MB")
    if way == "offload":
        from accelerate import cpu_offload

        model = LlamaForCausalLM.from_pretrained(folder)
        cpu_offload(model, torch.device("cuda"))
    else:
        limit = {0: "300MiB", "cpu": "8GiB"} if way == "limit" else None
        model = LlamaForCausalLM.from_pretrained(folder, device_map="auto", max_memory=limit)
    ids = torch.randint(0, 32000, (1, 64), device="cuda")
    with torch.no_grad():
        out = model(ids).logits
placed = torch.cuda.memory_allocated() >> 20
print(f"done, {tuple(out.shape)}, {placed} MiB, {torch.cuda.max_memory_allocated()} bytes at most")
