# SPDX-License-Identifier: MIT OR Apache-2.0
"""open_clip: ViT-B/32 and its text tower, contrastive loss, fp32."""

import open_clip
import torch

model = open_clip.create_model("ViT-B-32", pretrained=None).cuda()
loss_of = open_clip.ClipLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    images, texts = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(1, 49000, (64, 77), device="cuda")
    image, text, scale = model(images, texts)
    loss_of(image, text, scale).backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6052)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
