# SPDX-License-Identifier: MIT OR Apache-2.0
"""The U-Net of Stable Diffusion 1.5, trained: 860 M parameters, AdamW, fp16 autocast, checkpointing."""

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel

model = UNet2DConditionModel(
    sample_size=64,
    cross_attention_dim=768,
    attention_head_dim=8,
    block_out_channels=(320, 640, 1280, 1280),
).cuda()
model.enable_gradient_checkpointing()
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(2):
    latents, noise = torch.randn(4, 4, 64, 64, device="cuda"), torch.randn(4, 4, 64, 64, device="cuda")
    times = torch.randint(0, 1000, (4,), device="cuda")
    noisy = scheduler.add_noise(latents, noise, times)
    with torch.autocast("cuda", dtype=torch.float16):
        guess = model(noisy, times, torch.randn(4, 77, 768, device="cuda")).sample
        loss = torch.nn.functional.mse_loss(guess.float(), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
