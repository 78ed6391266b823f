# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small GPT, trained for two steps with PyTorch's defaults: what the changes of a dry run are tried on."""

import torch
import torch.nn.functional as F

WIDTH, BLOCKS, HEADS, WORDS, BATCH, LENGTH = 1024, 4, 8, 4096, 8, 512


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.norm2 = torch.nn.LayerNorm(WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH), torch.nn.Dropout(0.1)
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = GPT()
# made
model.to("cuda")
# moved
optimizer = torch.optim.AdamW(
    model.parameters(),
    lr=3e-4,
)
# ready
for _ in range(2):
    words = torch.randint(WORDS, (BATCH, LENGTH), device="cuda")
    logits = model(words)
    loss = F.cross_entropy(logits.view(-1, WORDS), words.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    del logits, loss
