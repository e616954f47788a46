"""A training in the style of torchvision's references: DistributedDataParallel under torchrun."""

import argparse
import os
import time

import torch
from torch import nn


def train_one_epoch(model, criterion, optimizer, loader, epoch, counter):
    model.train()
    for images, target in loader:
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counter["steps"] += 1
        if int(os.environ.get("RANK", 0)) == 0:
            print("step", counter["steps"], time.perf_counter(), flush=True)


@torch.inference_mode()
def evaluate(model, criterion, loader):
    model.eval()
    total = torch.zeros(1)
    for images, target in loader:
        total += criterion(model(images), target)
    torch.distributed.all_reduce(total)
    return total.item() / len(loader)


def main(args):
    torch.distributed.init_process_group("gloo", init_method="env://")
    generator = torch.Generator().manual_seed(0)
    dataset = torch.utils.data.TensorDataset(
        torch.randn(8192, 3, 32, 32, generator=generator), torch.randint(10, (8192,), generator=generator)
    )
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=2)
    test = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*dataset[:128]), args.batch_size)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    counter = {"steps": 0}
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, epoch, counter)
        scheduler.step()
        evaluate(model, criterion, test)
        if args.output_dir and int(os.environ["RANK"]) == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, os.path.join(args.output_dir, "checkpoint.pth"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--output-dir", default="")
    main(parser.parse_args())
