# SPDX-License-Identifier: MIT OR Apache-2.0
"""Faster R-CNN of torchvision: training with boxes, then inference; proposals depend on values."""

import torch
import torchvision

model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images = [torch.rand(3, 800, 1066, device="cuda") for _ in range(2)]
boxes = torch.tensor([[100.0, 100.0, 400.0, 300.0], [50.0, 60.0, 200.0, 500.0]], device="cuda")
targets = [{"boxes": boxes, "labels": torch.tensor([1, 2], device="cuda")} for _ in images]
for _ in range(2):
    losses = model(images, targets)
    sum(losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    found = model(images)
assert len(found) == 2 and found[0]["boxes"].shape[1] == 4
print(f"done, {sorted(losses)}, {torch.cuda.max_memory_allocated()} bytes at most")
