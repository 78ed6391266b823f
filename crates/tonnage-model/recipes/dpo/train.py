# SPDX-License-Identifier: MIT OR Apache-2.0
"""Trains LoRA adapters to prefer one answer over another (DPO). The reference is the model without the adapters.

    python train.py --model Qwen/Qwen3-0.6B --pairs pairs.jsonl --output tuned

Each line of --pairs has "prompt", "chosen", and "rejected". Without it, random tokens of full length are used.
"""

import argparse
import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="a name on the hub, or a directory")
parser.add_argument("--rank", type=int, default=16, help="the rank of the adapters")
parser.add_argument("--batch", type=int, default=1, help="pairs of a step")
parser.add_argument("--seq", type=int, default=2048, help="tokens of a prompt with its answer")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--lr", type=float, default=5e-6)
parser.add_argument("--beta", type=float, default=0.1)
parser.add_argument("--pairs", type=Path, help="prompts with a chosen and a rejected answer")
parser.add_argument("--output", help="where to save the adapters")
args = parser.parse_args()

model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, device_map="cuda")
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=args.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
model.train()
optimizer = torch.optim.AdamW([it for it in model.parameters() if it.requires_grad], lr=args.lr)

if args.pairs:
    rows = [json.loads(line) for line in args.pairs.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
else:
    random = torch.randint(model.config.vocab_size, (2, args.seq)).tolist()
    rows = [{"prompt": [], "chosen": random[0], "rejected": random[1]}] * (args.steps * args.batch)


def encode(text):
    """The token ids of a text; a list is returned unchanged."""
    return text if isinstance(text, list) else tokenizer.encode(text, add_special_tokens=False)


def batches():
    """Token ids and labels of chosen answers, followed by those of rejected ones. The label -100 has no loss."""
    for start in range(0, len(rows) - args.batch + 1, args.batch):
        ids = torch.zeros((2 * args.batch, args.seq), dtype=torch.int64)
        labels = torch.full_like(ids, -100)
        for index, row in enumerate(rows[start : start + args.batch]):
            prompt = encode(row["prompt"])
            for line, answer in ((index, row["chosen"]), (index + args.batch, row["rejected"])):
                sequence = torch.tensor((prompt + encode(answer))[: args.seq])
                ids[line, : len(sequence)] = sequence
                labels[line, len(prompt) : len(sequence)] = sequence[len(prompt) :]
        yield ids.to("cuda"), labels.to("cuda")


def log_likelihoods(ids, labels):
    """The logarithm of the likelihood of each answer."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    losses = cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="none")
    return -losses.view(len(ids), -1).sum(1)


for step, (ids, labels) in zip(range(1, args.steps + 1), batches(), strict=False):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad(), model.disable_adapter():
            reference = log_likelihoods(ids, labels)
        chosen, rejected = (log_likelihoods(ids, labels) - reference).chunk(2)
    loss = -logsigmoid(args.beta * (chosen - rejected)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")

if args.output:
    model.save_pretrained(args.output)
