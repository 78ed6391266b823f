# SPDX-License-Identifier: MIT OR Apache-2.0
"""transformers' own server with a small Llama, its tokenizer and random weights, as a person starts it."""

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PORT = 8125


def make_model():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(special_tokens=["<unk>", "<s>", "</s>"])
    tokenizer.train_from_iterator(["the memory of a GPU decides what can run"] * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained("model")
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=4096,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained("model")


def ask(path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://localhost:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


parser = argparse.ArgumentParser()
parser.add_argument("--batching", action="store_true", help="continuous batching, with a paged cache")
arguments = parser.parse_args()
make_model()
line = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--port", str(PORT), "--device", "cuda:0"]
server = subprocess.Popen([*line, *(["--continuous-batching"] if arguments.batching else [])])
while server.poll() is None:
    try:
        ask("/health")
        break
    except (urllib.error.URLError, ConnectionError):
        time.sleep(1)
wanted = {"model": "model", "messages": [{"role": "user", "content": "what can run"}], "max_tokens": 8, "stream": False}
answer = json.loads(ask("/v1/chat/completions", wanted))
print("answered:", answer["choices"][0]["finish_reason"])
# A server waits for further requests until somebody ends it.
time.sleep(3)
server.send_signal(signal.SIGTERM)
server.wait()
print("server ended")
print("done")
