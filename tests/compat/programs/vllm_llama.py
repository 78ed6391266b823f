# SPDX-License-Identifier: MIT OR Apache-2.0
"""vLLM with a model of Llama's shape and random weights: as a library, or `vllm serve` as a person starts it."""

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 8123
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def generate(arguments):
    from vllm import LLM, SamplingParams

    llm = LLM(
        model="model",
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=arguments.eager,
        max_model_len=4096,
        tensor_parallel_size=arguments.tensor_parallel,
    )
    prompts = [{"prompt_token_ids": list(range(1, 6))}, {"prompt_token_ids": list(range(100))}]
    for result in llm.generate(prompts, SamplingParams(max_tokens=8, detokenize=False)):
        answer = result.outputs[0]
        print(f"{len(result.prompt_token_ids)} tokens in, {len(answer.token_ids)} out: {answer.finish_reason}")


def ask(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://localhost:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


def serve(arguments):
    """Until it is ready, one completion, then ended by a signal."""
    line = [str(Path(sys.executable).parent / "vllm"), "serve", "model", "--load-format", "dummy"]
    line += ["--skip-tokenizer-init", "--max-model-len", "4096", "--port", str(PORT)]
    server = subprocess.Popen([*line, *(["--enforce-eager"] if arguments.eager else [])])
    while server.poll() is None:
        try:
            ask("/health")
            break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    wanted = {"model": "model", "prompt": [1, 2, 3, 4, 5], "max_tokens": 4, "detokenize": False}
    usage = json.loads(ask("/v1/completions", wanted))["usage"]
    print(f"{usage['prompt_tokens']} tokens in, {usage['completion_tokens']} out")
    server.send_signal(signal.SIGTERM)
    print("server ended with", server.wait())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": arguments.layers}))
    (serve if arguments.serve else generate)(arguments)
    print("done")
