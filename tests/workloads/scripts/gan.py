"""A GAN: two optimisers in each iteration."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(16384, 256))
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data))
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 256)))
    judge = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)), broadcast_buffers=False
    )
    generator_optimizer = torch.optim.Adam(generator.parameters(), 1e-4)
    judge_optimizer = torch.optim.RMSprop(judge.parameters(), 1e-4)
    loss = nn.functional.binary_cross_entropy_with_logits
    step = 0
    for _ in range(args.epochs):
        for (real,) in loader:
            fake = generator(torch.randn(len(real), 32))
            judge_optimizer.zero_grad()
            given = judge(torch.cat([real, fake.detach()]))
            truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
            loss(given, truth).backward()
            judge_optimizer.step()
            generator_optimizer.zero_grad()
            loss(judge(fake), torch.ones(len(real), 1)).backward()
            generator_optimizer.step()
            step += 1
            print("step", step, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
