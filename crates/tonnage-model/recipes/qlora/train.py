# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fine-tunes LoRA adapters of a causal language model whose weights have 4 bits (QLoRA).

    python train.py --model Qwen/Qwen3-0.6B --text notes.txt --output tuned

Without --text it trains on random tokens, which needs the same memory.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="a name on the hub, or a directory")
parser.add_argument("--rank", type=int, default=16, help="the rank of the adapters")
parser.add_argument("--batch", type=int, default=1, help="sequences of a step")
parser.add_argument("--seq", type=int, default=2048, help="tokens of a sequence")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--text", type=Path, help="a text to train on")
parser.add_argument("--output", help="where to save the adapters")
args = parser.parse_args()

four_bits = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(
    args.model, quantization_config=four_bits, dtype=torch.bfloat16, device_map="cuda"
)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=args.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
model.train()
optimizer = torch.optim.AdamW([it for it in model.parameters() if it.requires_grad], lr=args.lr)

if args.text:
    tokens = AutoTokenizer.from_pretrained(args.model)(args.text.read_text(), return_tensors="pt").input_ids[0]
else:
    tokens = torch.randint(model.config.vocab_size, (args.steps * args.batch * args.seq,))
sequences = tokens[: len(tokens) // args.seq * args.seq].view(-1, args.seq)

for step, ids in enumerate(DataLoader(sequences, batch_size=args.batch, shuffle=True, drop_last=True), 1):
    ids = ids.to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
    if step == args.steps:
        break

if args.output:
    model.save_pretrained(args.output)
