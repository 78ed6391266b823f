# SPDX-License-Identifier: MIT OR Apache-2.0
"""Fine-tunes BERT of six layers on pairs of sentences."""

import torch
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

config = BertConfig(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072, num_labels=3)
model = BertForSequenceClassification(config).to("cuda").train()
decay = [p for n, p in model.named_parameters() if p.ndim > 1]
rest = [p for n, p in model.named_parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=2e-5)
schedule = get_linear_schedule_with_warmup(optimizer, 1, 4)

for step in range(4):
    batch = {
        "input_ids": torch.randint(0, 30000, (32, 128), device="cuda"),
        "attention_mask": torch.ones(32, 128, dtype=torch.long, device="cuda"),
        "token_type_ids": torch.zeros(32, 128, dtype=torch.long, device="cuda"),
        "labels": torch.randint(0, 3, (32,), device="cuda"),
    }
    output = model(**batch)
    output.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
