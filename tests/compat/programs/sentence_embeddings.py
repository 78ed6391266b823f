# SPDX-License-Identifier: MIT OR Apache-2.0
"""sentence-transformers: a model with mean pooling, encode() of sorted batches, training with in-batch negatives."""

import tempfile

import torch
from sentence_transformers import SentenceTransformer, models
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as kinds
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *[f"w{i}" for i in range(1000)]])}
raw = Tokenizer(kinds.WordLevel(words, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
with tempfile.TemporaryDirectory() as folder:
    BertModel(BertConfig(vocab_size=2000, num_hidden_layers=6)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    body = models.Transformer(folder, max_seq_length=256)
model = SentenceTransformer(modules=[body, models.Pooling(768)], device="cuda")
texts = [" ".join(f"w{j % 1000}" for j in range(i, i + 10 + i % 200)) for i in range(256)]
vectors = model.encode(texts, batch_size=64, convert_to_tensor=True)
assert vectors.shape == (256, 768)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
model.train()
for _ in range(2):
    features = model.tokenize(texts[:64])
    features = {k: v.cuda() if hasattr(v, "cuda") else v for k, v in features.items()}
    out = model(features)["sentence_embedding"]
    out = torch.nn.functional.normalize(out)
    torch.nn.functional.cross_entropy(20 * out @ out.T, torch.arange(64, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
