"""Lightning's Trainer with four DataLoader workers, validation and its default checkpoints."""

import argparse
import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class StepTimes(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.is_global_zero:
            print("step", trainer.global_step, time.perf_counter(), flush=True)

    def on_train_end(self, trainer, module):
        print("trained", flush=True)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--out", default="lightning")
    parser.add_argument("--bar", action="store_true")
    parser.add_argument("--probe", action="store_true", help="with the callback of the harness")
    args = parser.parse_args()
    callbacks = [StepTimes(), *([TQDMProgressBar()] if args.bar else [])]
    if args.probe:
        import scaling_probe

        callbacks.append(scaling_probe.LightningCallback())
    data = TensorDataset(torch.randn(16384, 256), torch.randint(10, (16384,)))
    train = DataLoader(data, args.batch_size, shuffle=True, num_workers=4, persistent_workers=True)
    test = DataLoader(TensorDataset(*data[:1024]), 256)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("WORLD_SIZE", 1)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        max_epochs=args.epochs,
        logger=False,
        callbacks=callbacks,
        default_root_dir=args.out,
    )
    trainer.fit(Classifier(), train, test)
    trainer.save_checkpoint(os.path.join(args.out, "last.ckpt"))
