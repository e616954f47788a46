"""A user's script for probe.py: prints the CPU microseconds of the main thread per step."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

WARMUP, STEPS = 500, 4000

loader = DataLoader(TensorDataset(torch.randn(8 * (WARMUP + STEPS), 4), torch.zeros(8 * (WARMUP + STEPS), 1)), 8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
begun = 0.0
for number, (x, y) in enumerate(loader):
    if number == WARMUP:
        begun = time.thread_time()
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
print((time.thread_time() - begun) / STEPS * 1e6)
