"""A user's training whose optimiser steps twice for each batch."""

import torch
from torch.utils.data import DataLoader, TensorDataset

weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], 0.1)
for (x,) in DataLoader(TensorDataset(torch.ones(400, 4)), 8):
    for _ in range(2):
        optimizer.zero_grad()
        (x @ weight).mean().backward()
        optimizer.step()
