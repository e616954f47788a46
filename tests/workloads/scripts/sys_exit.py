"""A script that leaves with sys.exit once it has done its steps."""

import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=405)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, 10**9):
        model(torch.randn(args.batch_size, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, time.perf_counter(), flush=True)
        if step == args.steps:
            sys.exit()


if __name__ == "__main__":
    main()
