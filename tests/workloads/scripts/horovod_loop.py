"""A loop with Horovod, as in its examples for PyTorch."""

import argparse
import time

import horovod.torch as hvd
import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(42)
    data = torch.utils.data.TensorDataset(torch.randn(16384, 256), torch.randint(10, (16384,)))
    sampler = torch.utils.data.distributed.DistributedSampler(data, hvd.size(), hvd.rank())
    loader = torch.utils.data.DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    step = 0
    for epoch in range(args.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
            print("step", step, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
