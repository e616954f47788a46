"""DeepSpeed's ZeRO stage 1 on the CPU."""

import argparse
import time

import deepspeed
import torch
from deepspeed.utils.logging import set_log_level_from_string
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--local_rank", type=int, help="given by DeepSpeed's launcher")
    parser.add_argument("--log", action="store_true", help="what DeepSpeed logs at level INFO, such as its throughput")
    args = parser.parse_args()
    if args.log:
        set_log_level_from_string("info")
    deepspeed.init_distributed(dist_backend="gloo")
    config = {
        "train_micro_batch_size_per_gpu": args.batch_size // args.accumulate,
        "gradient_accumulation_steps": args.accumulate,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "gradient_clipping": 1.0,
        "steps_per_print": 20,
    }
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    data = torch.utils.data.TensorDataset(torch.randn(65536, 256), torch.randint(10, (65536,)))
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=config
    )
    batches = iter(loader)
    while engine.global_steps < args.steps:
        done = engine.global_steps
        try:
            images, labels = next(batches)
        except StopIteration:
            batches = iter(loader)
            continue
        loss = nn.functional.cross_entropy(engine(images), labels)
        engine.backward(loss)
        engine.step()
        if engine.global_steps > done and torch.distributed.get_rank() == 0:
            print("step", engine.global_steps, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
