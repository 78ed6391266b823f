# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a directory with the configuration of a model and files of weights that are all zero.

    python weights.py CONFIG_OR_DIRECTORY DIRECTORY

`from_pretrained` loads the directory as it loads the real model. The weights are a hole in a file, which uses no disk.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

config = AutoConfig.from_pretrained(sys.argv[1])
target = Path(sys.argv[2])
config.architectures = config.architectures or [AutoModelForCausalLM._model_mapping[type(config)].__name__]
config.save_pretrained(target)
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
# A parameter that layers share is listed once.
tensors = dict(model.named_parameters())
stored = model.state_dict().keys()
tensors.update((name, buffer) for name, buffer in model.named_buffers() if name in stored)

header, end = {"__metadata__": {"format": "pt"}}, 0
for name, tensor in tensors.items():
    start, end = end, end + tensor.numel() * tensor.element_size()
    header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(target / "model.safetensors", "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    file.truncate(8 + len(text) + end)
