"""DistributedDataParallel with gradient accumulation over four micro-batches."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64, help="of an optimiser step")
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(16384, 256), torch.randint(10, (16384,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size // ACCUMULATE, sampler=sampler, drop_last=True)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (images, labels) in enumerate(loader, 1):
            last = number % ACCUMULATE == 0
            with contextlib.nullcontext() if last else model.no_sync():
                (nn.functional.cross_entropy(model(images), labels) / ACCUMULATE).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                print("step", step, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
