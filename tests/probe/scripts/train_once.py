"""A user's training, which counts its own steps: prints the seconds of each as JSON, or writes them to --times."""

import argparse
import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start-method")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--catch", action="store_true", help="catch whatever the training raises")
    parser.add_argument("--exit", type=int)
    parser.add_argument("--fail", action="store_true")
    return parser.parse_args()


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x, _ in loader:
            model(x)
            time.sleep(0.01)
    model.train()


class Times:
    """Seconds of each step; a step with something else before it is marked."""

    def __init__(self, path):
        self.path, self.seconds, self.other, self.last, self.marked = path, [], [], time.perf_counter(), False

    def mark(self):
        self.marked = True

    def step(self):
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.other.append(self.marked)
        self.last, self.marked = now, False

    def saved(self):
        self.last = time.perf_counter()

    def write(self):
        if self.path:
            with open(self.path.replace("RANK", os.environ.get("RANK", "0")), "w") as file:
                json.dump({"seconds": self.seconds, "other": self.other}, file)


def main():
    args = parse()
    if args.ddp:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(args.samples, 16), torch.randint(0, 4, (args.samples,)))
    sampler = DistributedSampler(data) if args.ddp else None
    loader = DataLoader(
        data,
        args.batch,
        sampler=sampler,
        num_workers=args.workers,
        multiprocessing_context=args.start_method,
        persistent_workers=args.workers > 0,
    )
    test = DataLoader(TensorDataset(*data[:32]), 16)
    model = nn.Linear(16, 4)
    if args.ddp:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=args.scaler)
    times = Times(args.times)
    if args.evaluate:
        evaluate(model, test)  # as a sanity check before the training
    done = 0
    try:
        for _ in range(args.epochs):
            times.mark()
            for number, (x, y) in enumerate(loader):
                last = (number + 1) % args.accumulate == 0
                with contextlib.nullcontext() if last or not args.ddp else model.no_sync():
                    loss = nn.functional.cross_entropy(model(x), y) / args.accumulate
                    scaler.scale(loss).backward()
                time.sleep(0.02 / args.accumulate)  # the work
                if not last:
                    continue
                if args.scaler and done % 5 == 3:
                    for parameter in model.parameters():
                        parameter.grad.fill_(float("inf"))
                try:
                    scaler.step(optimizer)
                finally:
                    times.step()
                scaler.update()
                optimizer.zero_grad()
                done += 1
                if args.save_every and done % args.save_every == 0 and os.environ.get("RANK", "0") == "0":
                    time.sleep(0.05)  # gathering what is saved
                    torch.save(model.state_dict(), os.devnull)
                    times.saved()
                if args.fail and done == 3:
                    raise ValueError("the data are broken")
                if args.exit is not None and done == args.steps:
                    sys.exit(args.exit)
                if done == args.steps:
                    return
            if args.evaluate:
                evaluate(model, test)
    except BaseException:
        if not args.catch:
            raise
    finally:
        times.write()
    print("the script's last line")


if __name__ == "__main__":
    main()
