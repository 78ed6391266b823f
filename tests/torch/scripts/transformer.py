"""A 12-layer transformer, trained 4 steps with sequences that grow, or with the lengths that are given."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH = 32000, 768, 12, 12, 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


torch.manual_seed(0)
with torch.device("cuda"):
    model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
lengths = [int(length) for length in sys.argv[1:]] or [256, 384, 512, 640]
for step, length in enumerate(lengths):
    tokens = torch.randint(0, VOCABULARY, (BATCH, length), device="cuda")
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    print("weights", sum(p.numel() * p.element_size() for p in model.parameters()))
    print("gradients", sum(p.grad.numel() * p.grad.element_size() for p in model.parameters()))
    states = [value for state in optimizer.state.values() for value in state.values()]
    print("optimizer state", sum(s.numel() * s.element_size() for s in states if s.is_cuda))
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item()}")
print("peak allocated", torch.cuda.max_memory_allocated())
print("peak reserved", torch.cuda.max_memory_reserved())
