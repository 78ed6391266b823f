# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains LoRA adapters with a reward (GRPO): the answers of a prompt are compared with each other.

    python train.py --model Qwen/Qwen3-0.6B --prompts prompts.txt --output tuned

Write your own `reward`. Every answer has --new tokens. Without --prompts, random tokens are used.
"""

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="a name on the hub, or a directory")
parser.add_argument("--rank", type=int, default=16, help="the rank of the adapters")
parser.add_argument("--batch", type=int, default=1, help="prompts of a step, and answers of a backward pass")
parser.add_argument("--seq", type=int, default=2048, help="tokens of a prompt with its answer")
parser.add_argument("--new", type=int, default=32, help="tokens of an answer")
parser.add_argument("--answers", type=int, default=8, help="answers of a prompt")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--lr", type=float, default=1e-6)
parser.add_argument("--prompts", type=Path, help="a text with a prompt in each line")
parser.add_argument("--output", help="where to save the adapters")
args = parser.parse_args()

model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, device_map="cuda")
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=args.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([it for it in model.parameters() if it.requires_grad], lr=args.lr)

length = args.seq - args.new
if args.prompts:
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    lines = args.prompts.read_text().splitlines()
    inputs = tokenizer(lines, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    prompts, masks = inputs.input_ids, inputs.attention_mask
else:
    prompts = torch.randint(model.config.vocab_size, (args.steps * args.batch, length))
    masks = torch.ones_like(prompts)
batches = zip(prompts.split(args.batch), masks.split(args.batch), strict=True)


def reward(answers):
    """The reward of each answer: here, how many different tokens it has."""
    return torch.tensor([float(len(set(answer))) for answer in answers.tolist()], device="cuda")


for step, batch in zip(range(1, args.steps + 1), batches, strict=False):
    prompt, mask = (it.to("cuda").repeat_interleave(args.answers, 0) for it in batch)
    model.eval()
    with torch.no_grad():
        lengths = {"min_new_tokens": args.new, "max_new_tokens": args.new}
        ids = model.generate(prompt, attention_mask=mask, do_sample=True, **lengths)
    model.train()
    mask = torch.cat([mask, mask.new_ones(len(ids), args.new)], 1)
    rewards = reward(ids[:, length:]).view(-1, args.answers)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    parts = zip(ids.split(args.batch), mask.split(args.batch), advantages.split(args.batch), strict=True)
    for part, part_mask, advantage in parts:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(input_ids=part, attention_mask=part_mask, use_cache=False).logits[:, length - 1 : -1]
            losses = cross_entropy(logits.flatten(0, 1).float(), part[:, length:].flatten(), reduction="none")
        loss = (losses.view(len(part), -1).mean(1) * advantage).sum() / len(ids)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: reward {rewards.mean().item():.4f}")

if args.output:
    model.save_pretrained(args.output)
