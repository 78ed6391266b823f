# SPDX-License-Identifier: MIT OR Apache-2.0
"""segmentation-models-pytorch: U-Net with a ResNet-34 encoder, Dice loss, intersection over union."""

import segmentation_models_pytorch as smp
import torch

model = smp.Unet("resnet34", encoder_weights=None, classes=1).cuda()
loss_of = smp.losses.DiceLoss(mode="binary")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    images, masks = torch.randn(16, 3, 256, 256, device="cuda"), torch.randint(0, 2, (16, 1, 256, 256), device="cuda")
    out = model(images)
    loss_of(out, masks).backward()
    optimizer.step()
    optimizer.zero_grad()
stats = smp.metrics.get_stats((out.sigmoid() > 0.5).long(), masks, mode="binary")
score = smp.metrics.iou_score(*stats, reduction="micro").item()
assert 0 <= score <= 1 or score != score
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
