# SPDX-License-Identifier: MIT OR Apache-2.0
"""BERT: 15 % of the tokens masked on the device, the loss of those alone."""

import torch
from transformers import BertConfig, BertForMaskedLM

model = BertForMaskedLM(BertConfig(num_hidden_layers=4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
torch.manual_seed(0)
for _ in range(2):
    ids = torch.randint(1000, 30000, (32, 128)).cuda()
    chosen = torch.rand(ids.shape).cuda() < 0.15
    labels = torch.where(chosen, ids, -100)
    hidden = model.bert(torch.where(chosen, 103, ids)).last_hidden_state
    picked = hidden[chosen]
    assert picked.shape[0] == int(chosen.sum())
    torch.nn.functional.cross_entropy(model.cls(picked), labels[chosen]).backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"done, {picked.shape[0]} tokens, {torch.cuda.max_memory_allocated()} bytes at most")
