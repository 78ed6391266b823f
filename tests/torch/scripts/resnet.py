"""A ResNet-50-like network, trained for some steps with images whose size changes, as in progressive resizing."""

import torch
from torch import nn

BATCH, CLASSES = 24, 1000


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.short = nn.Identity()
        if stride != 1 or inside != 4 * width:
            self.short = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return torch.relu(self.path(x) + self.short(x))


def stages():
    yield from (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    inside = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            yield Bottleneck(inside, width, stride if number == 0 else 1)
            inside = 4 * width
    yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


with torch.device("cuda"):
    model = nn.Sequential(*stages())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for side in (160, 192, 224):
    images = torch.randn(BATCH, 3, side, side, device="cuda")
    labels = torch.randint(0, CLASSES, (BATCH,), device="cuda")
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
print("peak allocated", torch.cuda.max_memory_allocated())
print("peak reserved", torch.cuda.max_memory_reserved())
