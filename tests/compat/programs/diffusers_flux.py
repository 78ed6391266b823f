# SPDX-License-Identifier: MIT OR Apache-2.0
"""The transformer of Flux with 12 billion parameters, bf16, one pass at 1024 × 1024."""

import torch
from diffusers import FluxTransformer2DModel

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = FluxTransformer2DModel(guidance_embeds=True)
with torch.no_grad():
    out = model(
        hidden_states=torch.randn(1, 4096, 64, device="cuda"),
        encoder_hidden_states=torch.randn(1, 512, 4096, device="cuda"),
        pooled_projections=torch.randn(1, 768, device="cuda"),
        timestep=torch.tensor([0.5], device="cuda"),
        guidance=torch.tensor([3.5], device="cuda"),
        img_ids=torch.zeros(4096, 3, device="cuda"),
        txt_ids=torch.zeros(512, 3, device="cuda"),
    ).sample
print(f"done, {tuple(out.shape)}, {torch.cuda.max_memory_allocated()} bytes at most")
