# SPDX-License-Identifier: MIT OR Apache-2.0
"""SGLang with a model of Llama's shape and random weights: as a library, or its server as a person starts it."""

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PORT = 8124
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
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SAMPLING = {"max_new_tokens": 8, "ignore_eos": True}


def generate(arguments):
    import sglang

    engine = sglang.Engine(
        model_path="model", load_format="dummy", skip_tokenizer_init=True, tp_size=arguments.tensor_parallel
    )
    for prompt in (list(range(1, 6)), list(range(100))):
        answer = engine.generate(input_ids=prompt, sampling_params=SAMPLING)
        reason = answer["meta_info"]["finish_reason"]["type"]
        print(f"{len(prompt)} tokens in, {len(answer['output_ids'])} out: {reason}")
    engine.shutdown()


def ask(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://localhost:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


def serve(arguments):
    """Until it is ready, one request, then ended by a signal."""
    line = [sys.executable, "-m", "sglang.launch_server", "--model-path", "model", "--load-format", "dummy"]
    server = subprocess.Popen([*line, "--skip-tokenizer-init", "--port", str(PORT)])
    while server.poll() is None:
        try:
            ask("/health")
            break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    answer = json.loads(ask("/generate", {"input_ids": [1, 2, 3, 4, 5], "sampling_params": SAMPLING}))
    print(f"5 tokens in, {len(answer['output_ids'])} out")
    server.send_signal(signal.SIGTERM)
    server.wait()
    print("server ended")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": arguments.layers}))
    (serve if arguments.serve else generate)(arguments)
    print("done")
