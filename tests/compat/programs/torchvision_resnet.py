# SPDX-License-Identifier: MIT OR Apache-2.0
"""ResNet-50 of torchvision, channels last, fp16, SGD; with or without cudnn.benchmark."""

import argparse

import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--benchmark", action="store_true")
parser.add_argument("--batch", type=int, default=256)
arguments = parser.parse_args()
torch.backends.cudnn.benchmark = arguments.benchmark
model = torchvision.models.resnet50().to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.cuda.amp.GradScaler()
right = 0
for _ in range(2):
    images = torch.randn(arguments.batch, 3, 224, 224).to("cuda", memory_format=torch.channels_last, non_blocking=True)
    labels = torch.randint(0, 1000, (arguments.batch,), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(images)
        loss = torch.nn.functional.cross_entropy(out, labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    right += (out.argmax(1) == labels).sum().item()
assert 0 <= right <= 2 * arguments.batch
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
