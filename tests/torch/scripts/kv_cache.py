"""Generation with a key-value cache that grows by a token at a time, for requests of different lengths."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LAYERS = 32000, 1024, 16, 8
REQUESTS = [(4, 96, 40), (1, 700, 24), (8, 33, 32), (2, 410, 48)]  # batch, prompt, new tokens
REQUESTS = REQUESTS[: int(sys.argv[1])] if len(sys.argv) > 1 else REQUESTS


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache):
        batch, length, _ = x.shape
        query, key, value = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(x))), (key, value)


with torch.device("cuda"), torch.inference_mode():
    embedding = nn.Embedding(VOCABULARY, WIDTH).half()
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).half()
    for batch, prompt, new in REQUESTS:
        tokens = torch.randint(0, VOCABULARY, (batch, prompt))
        caches = [None] * LAYERS
        for _ in range(new):
            x = embedding(tokens)
            for index, layer in enumerate(layers):
                x, caches[index] = layer(x, caches[index])
            tokens = (x[:, -1] @ embedding.weight.T).argmax(-1, keepdim=True)
        del caches, x, tokens
        torch.cuda.empty_cache()
print("peak allocated", torch.cuda.max_memory_allocated())
print("peak reserved", torch.cuda.max_memory_reserved())
