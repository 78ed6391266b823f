# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs an experiment of peft's method comparison for three steps, without its weights, tokenizer and data sets.

Weights are a file of zeros with the shapes of Llama 3.2 3B, loaded as the published ones are. Two batches have about
the mean length of the published run; the cache is emptied, as the script does before the first batch of a bucket, which
has its longest samples; and the last batch has the longest samples of all. The samples of a batch differ in length, so
they are padded. Its evaluation, which generates text, takes less memory than a training step; it is left out.
"""

import importlib
import importlib.machinery
import json
import math
import os
import struct
import sys
import tempfile
import types
from pathlib import Path

import torch

comparison, experiment, mean, longest = sys.argv[1:5]
sys.path.insert(0, comparison)
HIDDEN, INNER, LAYERS, HEADS, GROUPS, HEAD, WORDS = 3072, 8192, 28, 24, 8, 128, 128256
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "head_dim": HEAD, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
    "intermediate_size": INNER, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": GROUPS, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "use_cache": True, "vocab_size": WORDS,
}  # fmt: skip


def shapes():
    yield "model.embed_tokens.weight", (WORDS, HIDDEN)
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        yield f"{start}.input_layernorm.weight", (HIDDEN,)
        yield f"{start}.mlp.down_proj.weight", (HIDDEN, INNER)
        yield f"{start}.mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{start}.mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{start}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{start}.self_attn.k_proj.weight", (GROUPS * HEAD, HIDDEN)
        yield f"{start}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD)
        yield f"{start}.self_attn.q_proj.weight", (HEADS * HEAD, HIDDEN)
        yield f"{start}.self_attn.v_proj.weight", (GROUPS * HEAD, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)


def model_folder(folder):
    """A checkpoint whose file has no bytes on the disk: what was never written reads as zeros."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    head, end = {}, 0
    for name, shape in shapes():
        size = 2 * math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({**head, "__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


class Tokenizer:
    """Pads on the right, as the script configures the published one."""

    model_max_length, pad_token_id, eos_token_id = 768, 128001, 128001

    def pad(self, batch, return_tensors, padding_side="right"):
        from transformers import BatchEncoding

        width = max(map(len, batch["input_ids"]))
        rows = [ids + [self.pad_token_id] * (width - len(ids)) for ids in batch["input_ids"]]
        masks = [[1] * len(ids) + [0] * (width - len(ids)) for ids in batch["input_ids"]]
        return BatchEncoding({"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)})

    def __call__(self, texts, **more):
        return {"attention_mask": [[1] for _ in texts]}


class Samples(dict):
    """The part of a data set that the script gets: four samples for each batch, of which the first is the longest."""

    def __init__(self, lengths):
        super().__init__()
        self.ids = [list(range(1, length - less + 1)) for length in lengths for less in (0, 3, 5, 8)]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, place):
        return {"input_ids": self.ids[place], "attention_mask": [[1] * len(ids) for ids in self.ids[place]]}


def absent(name):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.Dataset, module.load_dataset = object, None
    return module


# Packages of the data and of quantisation are imported and not used; those that need them to be real come first.
importlib.import_module("peft")
missing = [name for name in ("datasets", "bitsandbytes") if name not in sys.modules]
for name in missing:
    sys.modules[name] = absent(name)
run = importlib.import_module("run")
for name in missing:
    del sys.modules[name]

lengths = [int(mean), int(mean), int(longest)]


class Batches:
    """In the order given here; the script's own sorts a bucket by length."""

    def __init__(self, ds, **more):
        self.ds = ds

    def __iter__(self):
        for start in range(0, len(self.ds), 4):
            yield self.ds[start : start + 4]


run.print_verbose = print
run.BucketIterator = Batches
run.ACCELERATOR_EMPTY_CACHE_SCHEDULE = 2
run.get_tokenizer = lambda **more: Tokenizer()
run.get_wiki_small = lambda: []
run.calculate_mean_per_token_loss = lambda **more: 1.5
run.get_train_valid_test_datasets = lambda **more: (Samples(lengths), [], [])
run.evaluate = lambda **more: ([""], [""])
run.get_accuracy = lambda **more: 0.0
run.get_base_model_info = run.get_dataset_info = lambda name: None
run.get_file_size = lambda *rest, **more: 0
run.get_peft_branch = lambda: "main"
with tempfile.TemporaryDirectory() as name:
    model_folder(Path(name))
    read = run.get_train_config

    def config(path):
        found = read(path)
        found.model_id, found.max_steps, found.eval_steps = name, len(lengths), len(lengths)
        return found

    run.get_train_config = config
    finished = run.train
    kept = {}

    def train(**more):
        found = finished(**more)
        kept["trainable"] = found.num_trainable_params
        print("status", found.status, found.error_msg)
        return found

    run.train = train
    allocated = torch.cuda.memory_allocated
    seen = []

    def counted(*rest):
        seen.append(allocated(*rest))
        return seen[-1]

    torch.cuda.memory_allocated = counted

    def log(*, accelerator_memory_init, **more):
        most = torch.cuda.max_memory_reserved() - accelerator_memory_init
        print(f"RESULT trainable {kept['trainable']} allocated {seen[1] - accelerator_memory_init} reserved {most}")

    run.log_results = log
    os.chdir(comparison)
    path = f"experiments/{experiment}"
    run.main(path_experiment=path, experiment_name=experiment, clean=True, bucket_name=None)
