"""A PyTorch training loop on a GPU, following PyTorch's documentation and ImageNet example. The peer of gpu_check.

Automatic mixed precision, samples on the device, and nothing that waits for the device.
"""

import contextlib
import time

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.minimal.pytorch import network


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = None
        if stride > 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)), inplace=True)


def resnet50(classes=1000):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            width = 64 * 2**stage
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


NETWORKS = {"resnet20": network, "resnet44": lambda: network(44), "resnet50": resnet50}


def trainer(name, images, labels, batch, device, precision="fp32", channels_last=True, fused=False):
    """Return train(steps) -> seconds, and the network. images: uint8 [n, H, W, 3], labels: int64 [n] (NumPy)."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, y = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
    model = NETWORKS[name]().to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=fused)
    criterion = nn.CrossEntropyLoss()
    kind = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    # Small enough that no step is skipped: after a skipped first step, fused SGD reads uninitialised memory.
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, enabled=precision == "fp16")

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    def train(steps):
        wait()
        begin = time.perf_counter()
        order = torch.randint(len(x), (steps, batch), device=device)
        for mine in order:
            inputs = x[mine].permute(0, 3, 1, 2).float().sub_(127).div_(58).contiguous(memory_format=layout)
            optimizer.zero_grad()
            with torch.autocast(device, kind) if kind else contextlib.nullcontext():
                loss = criterion(model(inputs), y[mine])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        wait()
        return time.perf_counter() - begin

    return train, model
