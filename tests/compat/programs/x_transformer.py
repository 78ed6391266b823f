# SPDX-License-Identifier: MIT OR Apache-2.0
"""x-transformers and vector-quantize-pytorch: a decoder with rotary positions; codes chosen on the device."""

import torch
from vector_quantize_pytorch import VectorQuantize
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

layers = Decoder(dim=512, depth=6, heads=8, rotary_pos_emb=True, attn_flash=True)
model = AutoregressiveWrapper(TransformerWrapper(num_tokens=20000, max_seq_len=1024, attn_layers=layers)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    model(torch.randint(0, 20000, (4, 1024), device="cuda")).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
out = model.generate(torch.zeros(1, 1, dtype=torch.long, device="cuda"), 32)
assert out.shape == (1, 32)
codes = VectorQuantize(dim=256, codebook_size=512).cuda()
quantized, indices, loss = codes(torch.randn(4, 1024, 256, device="cuda"))
assert quantized.shape == (4, 1024, 256) and indices.shape == (4, 1024)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
