"""A loop with Accelerate, which evaluates after each epoch."""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    data = TensorDataset(torch.randn(8192, 256), torch.randint(10, (8192,)))
    model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    test = DataLoader(TensorDataset(*data[:1024]), 256)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, loader, test, schedule = accelerator.prepare(model, optimizer, loader, test, schedule)
    step = 0
    for epoch in range(args.epochs):
        model.train()
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            step += 1
            if accelerator.is_main_process:
                print("step", step, time.perf_counter(), flush=True)
        model.eval()
        correct = torch.zeros(1)
        for images, labels in test:
            with torch.no_grad():
                found = model(images).argmax(1)
            correct += accelerator.gather_for_metrics((found == labels).float()).sum()
        accelerator.print(f"epoch {epoch}: accuracy {correct.item() / 1024:.3f}")


if __name__ == "__main__":
    main()
