"""A user's GAN: two optimisers in each iteration, in a function that the script defines."""

import time

import torch
from torch import nn

networks = [nn.Linear(4, 4), nn.Linear(4, 1)]
optimizers = [torch.optim.SGD(networks[0].parameters(), 0.1), torch.optim.Adam(networks[1].parameters())]


def train_step(x):
    for optimizer in optimizers:
        optimizer.zero_grad()
        networks[1](networks[0](x)).mean().backward()
        optimizer.step()
        time.sleep(0.01)


for _ in range(100):
    train_step(torch.ones(8, 4))
