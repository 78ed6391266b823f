# SPDX-License-Identifier: MIT OR Apache-2.0
"""The U-Net of Stable Diffusion XL, 2.6 billion parameters, two passes at 1024 × 1024, fp16, and its decoder."""

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel

torch.set_default_dtype(torch.float16)
with torch.device("cuda"):
    unet = UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )
    decoder = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    )
more = {"text_embeds": torch.randn(2, 1280, device="cuda"), "time_ids": torch.zeros(2, 6, device="cuda")}
latents, text = torch.randn(1, 4, 128, 128, device="cuda"), torch.randn(2, 77, 2048, device="cuda")
with torch.no_grad():
    for time in (500, 1):
        both = unet(torch.cat([latents] * 2), time, text, added_cond_kwargs=more).sample
        latents = latents - 0.1 * both.mean(0, keepdim=True)
    image = decoder.decode(latents).sample
print(f"done, {tuple(image.shape)}, {torch.cuda.max_memory_allocated()} bytes at most")
