# SPDX-License-Identifier: MIT OR Apache-2.0
"""transformers.Trainer on a Llama of random weights: full training, with or without checkpointing."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=["tiny", "1b", "8b"], default="1b")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--tokens", type=int, default=2048)
parser.add_argument("--optimizer", default="adamw_torch")
arguments = parser.parse_args()
sizes = {
    "tiny": dict(
        hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4
    ),
    "1b": dict(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8
    ),
    "8b": dict(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8
    ),
}
config = LlamaConfig(vocab_size=128256 if arguments.size != "tiny" else 32000, **sizes[arguments.size])


class Texts(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 32000, (arguments.tokens,))
        return {"input_ids": ids, "labels": ids.clone()}


if arguments.size == "8b":
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
else:
    model = LlamaForCausalLM(config)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=arguments.batch,
            max_steps=2,
            bf16=True,
            gradient_checkpointing=arguments.checkpointing,
            optim=arguments.optimizer,
            report_to=[],
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Texts(),
    )
    result = trainer.train()
print(f"done, {result.global_step} steps, {torch.cuda.max_memory_allocated()} bytes at most")
