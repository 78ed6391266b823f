# SPDX-License-Identifier: MIT OR Apache-2.0
"""A language model of LSTMs with packed sequences, and a GRU that translates."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

embedding, lstm = (
    nn.Embedding(20000, 512).cuda(),
    nn.LSTM(512, 1024, 3, batch_first=True, dropout=0.2, bidirectional=True).cuda(),
)
head = nn.Linear(2048, 20000).cuda()
optimizer = torch.optim.Adam([*embedding.parameters(), *lstm.parameters(), *head.parameters()])
for _ in range(2):
    lengths = torch.randint(20, 101, (64,)).sort(descending=True).values
    ids = torch.randint(1, 20000, (64, int(lengths[0]))).cuda()
    packed = pack_padded_sequence(embedding(ids), lengths, batch_first=True)
    out, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    nn.functional.cross_entropy(head(out).flatten(0, 1), ids.flatten(), ignore_index=0).backward()
    optimizer.step()
    optimizer.zero_grad()
gru = nn.GRU(256, 512, 2).cuda()
gru(torch.randn(50, 32, 256, device="cuda"))[0].mean().backward()
print(f"done, {tuple(out.shape)[2:]}, {torch.cuda.max_memory_allocated()} bytes at most")
