# SPDX-License-Identifier: MIT OR Apache-2.0
"""timm: a model trained with its optimizer, mixup, and an average of the weights."""

import argparse

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV2

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="vit_base_patch16_224")
parser.add_argument("--batch", type=int, default=128)
arguments = parser.parse_args()
model = timm.create_model(arguments.model, num_classes=1000).cuda()
average = ModelEmaV2(model, decay=0.999)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
mixup, loss_of = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=1000), SoftTargetCrossEntropy()
scaler = torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
for _ in range(2):
    images = torch.randn(arguments.batch, 3, 224, 224, device="cuda")
    images, targets = mixup(images, torch.randint(0, 1000, (arguments.batch,), device="cuda"))
    with torch.autocast("cuda"):
        loss = loss_of(model(images), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    average.update(model)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
