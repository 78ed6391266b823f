# SPDX-License-Identifier: MIT OR Apache-2.0
"""A Hugging Face Trainer on several GPUs: DDP, FSDP, or DeepSpeed's ZeRO-3, with an evaluation."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["ddp", "fsdp", "zero3"])
arguments = parser.parse_args()
more = {
    "ddp": {},
    "fsdp": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}},
    "zero3": {
        "deepspeed": {
            "zero_optimization": {"stage": 3},
            "bf16": {"enabled": True},
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
        }
    },
}[arguments.how]


class Tokens(Dataset):
    def __len__(self):
        return 13

    def __getitem__(self, index):
        tokens = (torch.arange(256) * (index + 1)) % 4096
        return {"input_ids": tokens, "labels": tokens}


settings = TrainingArguments(
    tempfile.mkdtemp(),
    max_steps=2,
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    bf16=True,
    report_to=[],
    save_strategy="no",
    logging_steps=1,
    **more,
)
config = LlamaConfig(
    vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=4, num_attention_heads=8
)
trainer = Trainer(LlamaForCausalLM(config), settings, train_dataset=Tokens(), eval_dataset=Tokens())
trainer.train()
found = trainer.evaluate()
assert "eval_loss" in found, found
print(f"done, rank {settings.process_index} of {settings.world_size}\n", end="", flush=True)
