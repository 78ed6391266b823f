# SPDX-License-Identifier: MIT OR Apache-2.0
"""monai: a 3D U-Net, Dice loss, sliding windows."""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

model = UNet(3, 1, 2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2).cuda()
optimizer = torch.optim.Adam(model.parameters())
loss_of = DiceCELoss(to_onehot_y=True, softmax=True)
for _ in range(2):
    image = torch.randn(2, 1, 96, 96, 96, device="cuda")
    label = (image > 0).float()
    loss_of(model(image), label).backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    out = sliding_window_inference(torch.randn(1, 1, 160, 160, 128, device="cuda"), (96, 96, 96), 4, model)
assert out.shape == (1, 2, 160, 160, 128)
print(f"done, {torch.cuda.max_memory_allocated()} bytes at most")
