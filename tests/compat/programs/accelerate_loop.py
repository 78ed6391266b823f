# SPDX-License-Identifier: MIT OR Apache-2.0
"""accelerate: prepare, accumulate, clip, gather_for_metrics; BERT for classification."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = BertForSequenceClassification(BertConfig(num_hidden_layers=6))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
rows = [
    {
        "input_ids": torch.randint(0, 30000, (128,)),
        "attention_mask": (torch.arange(128) < 100).long(),
        "labels": torch.tensor(i % 2),
    }
    for i in range(64)
]
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=16))
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
model.eval()
right = count = 0
for batch in loader:
    with torch.no_grad():
        guesses = model(**batch).logits.argmax(-1)
    guesses, labels = accelerator.gather_for_metrics((guesses, batch["labels"]))
    right, count = right + (guesses == labels).sum().item(), count + len(labels)
assert 0 <= right <= count == 64
print(f"done, {count} rows, {torch.cuda.max_memory_allocated()} bytes at most")
