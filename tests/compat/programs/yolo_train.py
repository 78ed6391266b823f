# SPDX-License-Identifier: MIT OR Apache-2.0
"""ultralytics: YOLOv8s trained for an epoch on images made by the script, with validation."""

import os

import cv2
import numpy as np
import torch

root = os.path.join(os.getcwd(), "yolo")
for part in ("train", "val"):
    os.makedirs(f"{root}/images/{part}", exist_ok=True)
    os.makedirs(f"{root}/labels/{part}", exist_ok=True)
    for i in range(32 if part == "train" else 8):
        cv2.imwrite(f"{root}/images/{part}/{i}.jpg", np.random.randint(0, 255, (480, 640, 3), dtype=np.uint8))
        with open(f"{root}/labels/{part}/{i}.txt", "w") as file:
            file.write("0 0.5 0.5 0.3 0.3\n1 0.3 0.3 0.2 0.2\n")
with open(f"{root}/data.yaml", "w") as file:
    file.write(f"path: {root}\ntrain: images/train\nval: images/val\nnames: {{0: a, 1: b}}\n")
from ultralytics import YOLO  # noqa: E402

model = YOLO("yolov8s.yaml")
model.train(data=f"{root}/data.yaml", epochs=1, imgsz=640, batch=16, device=0, workers=2, project=root, plots=False)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
