"""The worker compared with a hand-written training loop (benchmarks/minimal/pytorch_gpu.py), alternating blocks in one
process.

Same network, batch, precision, memory format and optimiser, samples on the device, no augmentation; the loop is
idiomatic PyTorch and uses nothing of this program. Reported is the median over pairs of the loop's seconds divided by
ours, i.e. our throughput relative to the loop's, with its sign-test interval.
"""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.sections import Ask, Report
from benchmarks.minimal import pytorch_gpu
from harness.core.spec import DatasetSpec, OptimizerSpec
from harness.worker.adapter import Adapter

# The loop's settings, with which nothing diverges: on a GPU, numbers that are not random take less time.
SMALL_STEPS = OptimizerSpec(lr=0.01, lr_rule="constant")
# Approximate block length: short enough for many blocks, long enough for the fence not to matter.
BLOCK_SECONDS, FIRST_STEPS = 0.25, 3
# ResNet-50 with mixed precision needs about 25 GB for 256 images of 224 pixels.
BATCH, SMALL_BATCH, BATCH_BYTES = 256, 64, 36e9


def cifar(ask: Ask, report: Report) -> None:
    data = runs.images(8 if ask.reduced else 32, samples=256 if ask.reduced else 2048)
    models = ("resnet20",) if ask.reduced else ("resnet20", "resnet44")
    choices = list(itertools.product(models, ("fp32",), (True, False), (False, True)))
    _all(ask, report, choices, data, 4 if ask.reduced else 128)


def resnet50(ask: Ask, report: Report) -> None:
    data = runs.images(32 if ask.reduced else 224, classes=1000, samples=64 if ask.reduced else 1024)
    precisions = ("fp32",) if ask.reduced else ("fp16", *runs.bf16())
    formats = (True,) if ask.reduced else (True, False)
    # By memory format first: with too little time, the last ones are missing in both precisions.
    choices = [("resnet50", p, f, fused) for f, fused, p in itertools.product(formats, (False, True), precisions)]
    _all(ask, report, choices, data, 2 if ask.reduced else BATCH if _memory() >= BATCH_BYTES else SMALL_BATCH)


def _all(ask: Ask, report: Report, choices: list[tuple[str, str, bool, bool]], data: DatasetSpec, batch: int) -> None:
    for number, (model, precision, channels_last, fused) in enumerate(choices):
        seconds = ask.seconds_left / (len(choices) - number)
        form = "NHWC" if channels_last else "NCHW"
        name = f"{model} batch {batch} {precision} {form}{' fused' * fused}"
        _one(ask, report, name, data, seconds, model, batch, precision, channels_last, fused)


def _one(
    ask: Ask,
    report: Report,
    name: str,
    data: DatasetSpec,
    seconds: float,
    model: str,
    batch: int,
    precision: str,
    channels_last: bool,
    fused: bool,
) -> None:
    end = ask.seconds_left - seconds
    spec = runs.spec_of(ask, model, data, batch, precision, channels_last, optimizer=SMALL_STEPS, fused=fused)
    split, _ = runs.splits(data, None)
    with runs.adapter_of(spec, ask) as adapter:
        samples = split.images(np.arange(len(split))), split.labels
        peer, network = pytorch_gpu.trainer(model, *samples, batch, ask.device, precision, channels_last, fused)
        apart = sum(weight.numel() for weight in network.parameters()) - runs.parameters_of(spec)
        steps = 1 if ask.reduced else steps_of_block(adapter)
        runs.against_loop(ask, report, name, adapter, peer, steps, ask.seconds_left - end)
    if apart:
        report(Figure(f"{name}, parameters more than ours", apart, bound="= 0"))


def steps_of_block(adapter: Adapter) -> int:
    runs.seconds(adapter, adapter.step, FIRST_STEPS)  # cuDNN chooses its algorithms
    seconds = runs.seconds(adapter, adapter.step, FIRST_STEPS) / FIRST_STEPS
    return max(2, min(50, round(BLOCK_SECONDS / seconds)))


def _memory() -> int:
    """GPU memory in bytes."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)
