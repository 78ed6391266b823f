# SPDX-License-Identifier: MIT OR Apache-2.0
"""Generates text with a causal language model.

    python generate.py --model Qwen/Qwen3-0.6B --prompt "The capital of France is"

Without --prompt it continues random tokens up to a sequence of full length.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="a name on the hub, or a directory")
parser.add_argument("--dtype", default="bfloat16", help="the type of weights and of the KV cache")
parser.add_argument("--quant", choices=["int8", "nf4"], help="the type of weights of linear layers")
parser.add_argument("--batch", type=int, default=1, help="sequences at the same time")
parser.add_argument("--seq", type=int, default=2048, help="tokens of a sequence, with the generated ones")
parser.add_argument("--new", type=int, default=32, help="tokens to generate")
parser.add_argument("--prompt", help="a text to continue")
args = parser.parse_args()

dtype = getattr(torch, args.dtype)
quantization = {
    "int8": BitsAndBytesConfig(load_in_8bit=True),
    "nf4": BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    ),
}.get(args.quant)
model = AutoModelForCausalLM.from_pretrained(
    args.model, dtype=dtype, quantization_config=quantization, device_map="cuda"
)

if args.prompt:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    inputs = tokenizer([args.prompt] * args.batch, return_tensors="pt").to("cuda")
    answers = model.generate(**inputs, max_new_tokens=args.new)
    print("\n".join(tokenizer.batch_decode(answers, skip_special_tokens=True)))
else:
    ids = torch.randint(model.config.vocab_size, (args.batch, args.seq - args.new), device="cuda")
    answers = model.generate(ids, min_new_tokens=args.new, max_new_tokens=args.new)
    print(f"{answers.shape[0]} sequences of {answers.shape[1]} tokens")
