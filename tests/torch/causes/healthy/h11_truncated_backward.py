# SPDX-License-Identifier: MIT OR Apache-2.0
"""A language model with an LSTM, trained by truncated backpropagation through time."""

import torch
from torch import nn

VOCABULARY, WIDTH, BATCH, CHUNK = 10000, 1024, 64, 35


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, labels, state):
        output, state = self.lstm(self.embedding(tokens), state)
        return nn.functional.cross_entropy(self.decoder(output).flatten(0, 1), labels.flatten()), state


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
text = torch.randint(VOCABULARY, (BATCH, 6 * CHUNK + 1), device="cuda")
state = None
for start in range(0, 6 * CHUNK, CHUNK):
    tokens, labels = text[:, start : start + CHUNK], text[:, start + 1 : start + CHUNK + 1]
    loss, state = model(tokens, labels, state)
    state = tuple(part.detach() for part in state)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
