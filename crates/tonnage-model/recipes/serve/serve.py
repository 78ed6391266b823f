# SPDX-License-Identifier: MIT OR Apache-2.0
"""Serves a causal language model with vLLM, and answers a batch of requests.

    python serve.py --model Qwen/Qwen3-0.6B --batch 8 --seq 4096

`vllm serve MODEL --max-model-len 4096 --max-num-seqs 8` starts the same engine behind an HTTP interface.
"""

import argparse
import random

from vllm import LLM, SamplingParams

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="a name on the hub, or a directory")
parser.add_argument("--dtype", default="bfloat16", help="the type of weights and of the KV cache")
parser.add_argument("--batch", type=int, default=1, help="requests at the same time")
parser.add_argument("--seq", type=int, default=2048, help="tokens of a request, with the generated ones")
parser.add_argument("--new", type=int, default=32, help="tokens to generate")
parser.add_argument("--utilization", type=float, default=0.9, help="the part of the GPU that vLLM may use")
parser.add_argument("--load-format", default="auto", help="dummy: random weights, without a download")
args = parser.parse_args()

if __name__ == "__main__":
    llm = LLM(
        model=args.model,
        dtype=args.dtype,
        max_model_len=args.seq,
        max_num_seqs=args.batch,
        gpu_memory_utilization=args.utilization,
        load_format=args.load_format,
        skip_tokenizer_init=True,
    )
    words = llm.llm_engine.model_config.get_vocab_size()
    prompts = [{"prompt_token_ids": random.choices(range(words), k=args.seq - args.new)} for _ in range(args.batch)]
    sampling = SamplingParams(max_tokens=args.new, ignore_eos=True, detokenize=False)
    for answer in llm.generate(prompts, sampling):
        print(len(answer.prompt_token_ids), len(answer.outputs[0].token_ids))
