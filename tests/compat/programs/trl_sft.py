# SPDX-License-Identifier: MIT OR Apache-2.0
"""trl's SFTTrainer with LoRA on texts that are tokenized by the script."""

import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

texts = [f"question {i}: what is {i} plus {i}? answer: {2 * i}. " * 20 for i in range(64)]
tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<pad>", "</s>"]))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=16,
    vocab_size=len(tokenizer),
    pad_token_id=tokenizer.pad_token_id,
)
with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model=LlamaForCausalLM(config),
        args=SFTConfig(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=8,
            bf16=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
        ),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    steps = trainer.train().global_step
print(f"done, {steps} steps, {torch.cuda.max_memory_allocated()} bytes at most")
