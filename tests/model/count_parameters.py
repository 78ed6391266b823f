# SPDX-License-Identifier: MIT OR Apache-2.0
"""Counts parameters, linear layers, and cached values of models with transformers itself, on the meta device.

    python tests/model/count_parameters.py [--check]

`crates/tonnage-model/tests/data/counted.json` has a row for each configuration: public models by name,
variants with other options, and the defaults of transformers. This writes the figures of each row; `--check` compares
them. A test of the crate computes the same figures from the configurations, and shares no code with this file. To add a
row, write its name and configuration.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers.pytorch_utils import Conv1D

COUNTED = Path(__file__).parents[2] / "crates/tonnage-model/tests/data/counted.json"
CLASSES = {
    "bert": AutoModelForMaskedLM,
    "roberta": AutoModelForMaskedLM,
    "distilbert": AutoModelForMaskedLM,
    "t5": AutoModelForSeq2SeqLM,
}


def count(values):
    """The figures of one configuration."""
    given = dict(values)
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    with torch.device("meta"):
        model = CLASSES.get(config.model_type, AutoModelForCausalLM).from_config(config)
    head = model.get_output_embeddings()
    linear = [
        module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    ]
    shapes = [tuple(module.weight.shape) for module in linear]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "linear_weights": sum(inputs * outputs for inputs, outputs in shapes),
        "linear_sides": sum(inputs + outputs for inputs, outputs in shapes),
        "cache_per_token": None if config.model_type in CLASSES else cached(model),
    }


def cached(model):
    """Values that the cache of keys and values gains with a token, of all layers."""
    sizes = []
    for length in (2, 3):
        ids = torch.zeros((1, length), dtype=torch.int64, device="meta")
        with torch.no_grad():
            layers = model(input_ids=ids, use_cache=True).past_key_values.layers
        sizes.append(sum(layer.keys.numel() + layer.values.numel() for layer in layers))
    return sizes[1] - sizes[0]


def main():
    before = json.loads(COUNTED.read_text())
    rows = [{"name": it["name"], "config": it["config"], **count(it["config"])} for it in before["rows"]]
    differing = [row["name"] for row, old in zip(rows, before["rows"], strict=True) if row != old]
    for name in differing:
        print(f"{name}: differs")
    if "--check" in sys.argv:
        return 1 if differing else 0
    lines = ",\n".join(json.dumps(row) for row in rows)
    COUNTED.write_text(f'{{"transformers": "{transformers.__version__}", "rows": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
