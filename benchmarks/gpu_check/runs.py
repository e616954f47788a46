"""Runs for the sections: the worker's adapter in this process, built as in a rank."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT
from benchmarks.gpu_check.figures import median
from benchmarks.gpu_check.sections import Ask, Report
from harness.core import determinism
from harness.core.gpu_types import AMPERE
from harness.core.rendezvous import Rendezvous
from harness.core.spec import (
    DEVICE,
    ClusterSpec,
    DatasetSpec,
    InputSpec,
    MeasureSpec,
    OptimizerSpec,
    Placement,
    RunSpec,
    Site,
)
from harness.plan.machine import cores
from harness.worker.adapter import Adapter
from harness.worker.data.pipelines import open_pipeline
from harness.worker.data.readers import open_dataset
from harness.worker.data.splits import Split
from harness.worker.timing import timed
from harness.worker.whitening import whiten
from models import catalog

ALONE = Rendezvous(0, 1, 0, 1, "127.0.0.1", 0)
# Exactly representable in float32, so that a graph, which reads it from the device, steps like eager code.
EXACT = OptimizerSpec(lr=0.125, lr_rule="constant")
TEXT_TOKENS = 64


def images(size: int, classes: int = 10, samples: int = 2048, augment: bool = False) -> DatasetSpec:
    """Synthetic images, as in conf/dataset/synthetic.yaml."""
    mean, std = (0.498,) * 3, (0.229,) * 3
    counts = {"train_samples": samples, "test_samples": 256}
    return DatasetSpec("synthetic", "synthetic", classes, 3, size, mean, std, augment, **counts)


def text(samples: int = 512) -> DatasetSpec:
    """Synthetic text, as in conf/dataset/synthetic_text.yaml but with shorter samples."""
    counts = {"train_samples": samples, "test_samples": 64, "context": TEXT_TOKENS}
    return DatasetSpec("synthetic_text", "synthetic", 256, 0, 0, (), (), False, **counts)


def spec_of(
    ask: Ask,
    model: str,
    dataset: DatasetSpec,
    batch: int,
    precision: str = "fp32",
    channels_last: bool = True,
    device: str | None = None,
    optimizer: OptimizerSpec = EXACT,
    deterministic: bool = False,
    **options: bool,
) -> RunSpec:
    """A PyTorch run on one rank without a strategy, with its samples on the device.

    options: framework options besides channels_last; false ones are omitted, as the plan does.
    """
    asked = {name: value for name, value in options.items() if value}
    return RunSpec(
        framework="pytorch",
        framework_options={"compile": False, "channels_last": channels_last, **asked},
        environment=sys.executable,
        strategy="plain",
        strategy_options={},
        model=model,
        dataset=dataset,
        precision=precision,
        gpus=1,
        placement=Placement(1, 1),
        scaling="strong",
        global_batch=batch,
        batch_per_gpu=batch,
        seed=0,
        repeat=0,
        optimizer=optimizer,
        measure=MeasureSpec(),
        cluster=ClusterSpec("local", device or ask.device, 1 if ask.reduced else cores()),
        data=InputSpec(DEVICE, workers=0, prefetch=0, samples=dataset.train_samples),
        deterministic=deterministic,
    )


def site_of(ask: Ask) -> Site:
    nothing = {"oversubscribed": None, "visible_gpus": None, "timeout_seconds": 600.0}
    return Site(python=sys.executable, data_root=str(ask.data), project=str(ROOT), code_version="", **nothing)


@contextlib.contextmanager
def adapter_of(spec: RunSpec, ask: Ask, first_step: int = 0) -> Iterator[Adapter]:
    """Build the adapter and its pipeline as harness/worker/rank.py does; on exit close it and free its memory.

    With deterministic=true PyTorch also fills uninitialised memory with NaN (torch.utils.deterministic).
    """
    os.environ.update(determinism.variables(spec))  # before the process first uses cuBLAS
    site = site_of(ask)
    framework = importlib.import_module(f"harness.worker.{spec.framework}")
    train, _ = splits(spec.dataset, ask.data)
    batches = open_pipeline(spec, train, 0, first_step, getattr(framework, "PIPELINES", {}))
    adapter: Adapter = framework.Adapter(spec, site, ALONE, batches)
    try:
        whiten(spec, train, adapter)
        batches.start()
        yield adapter
        adapter.fence()
        adapter.close()
    finally:
        batches.close()
        del adapter, batches
        gc.collect()
        if spec.framework == "pytorch":
            import torch  # imported late: JAX's process must not load it

            torch.use_deterministic_algorithms(False)
            torch.cuda.empty_cache()  # no effect if CUDA was not used


@functools.cache
def splits(dataset: DatasetSpec, data: Path | None) -> tuple[Split, Split]:
    """The training and test split, generated or read once per process."""
    return open_dataset(dataset, str(data) if data else None)


def test_samples(spec: RunSpec, count: int) -> np.ndarray:
    """The first samples of the test split, in the form that `Adapter.logits` takes."""
    _, test = splits(spec.dataset, None)
    return np.ascontiguousarray(test.images(np.arange(count)))


def parameters_of(spec: RunSpec) -> int:
    """Number of parameters according to the catalogue."""
    data = spec.dataset
    return catalog.parameters(catalog.network(spec.model).layers(data.channels, data.classes, data.size))


def difference(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Relative difference over all elements: |found - wanted| / |wanted|, Euclidean, in double precision."""
    squares = sum(float(np.square(w, dtype=np.float64).sum()) for w in wanted)
    apart = sum(float(np.square(f.astype(np.float64) - w).sum()) for f, w in zip(found, wanted, strict=True))
    return (apart / squares) ** 0.5


def largest(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest element-wise difference: 0 if all are equal, NaN if one is NaN."""
    return float(np.max([np.abs(f.astype(np.float64) - w).max() for f, w in zip(found, wanted, strict=True)]))


def train(adapter: Adapter, steps: int) -> list[float]:
    """Train and return the loss of each step."""
    losses = []
    for _ in range(steps):
        adapter.step()
        adapter.fence()
        losses.append(adapter.loss())
    return losses


def seconds(adapter: Adapter, step: Callable[[], None], steps: int) -> float:
    """Seconds of a block of steps, by the worker's own clock."""
    return timed(adapter, step, steps).seconds


def bf16() -> tuple[str, ...]:
    """('bf16',) if the GPU has tensor cores for bf16 and tf32, else ()."""
    import torch

    return ("bf16",) if torch.cuda.get_device_capability(0) >= AMPERE else ()


def against_loop(
    ask: Ask, report: Report, name: str, adapter: Adapter, peer: Callable[[int], float], steps: int, budget: float
) -> None:
    """Report the worker's throughput and its ratio to that of a hand-written loop; at least 0.97 of it on a GPU."""
    arms = {"ours": functools.partial(seconds, adapter, adapter.step, steps), "peer": functools.partial(peer, steps)}
    taken = pairs(ask, arms, budget)
    ratios = [p / o for o, p in zip(taken["ours"], taken["peer"], strict=True)]
    report(median(f"{name}, ours / loop", ratios, "of throughput", ask.bound("≥ 0.97")))
    batch = adapter.spec.global_batch  # type: ignore[attr-defined]
    report(median(f"{name}, ours", [batch * steps / s for s in taken["ours"]], "images/s"))


def pairs(ask: Ask, arms: dict[str, Any], seconds: float, least: int = 6, most: int = 40) -> dict[str, list[float]]:
    """Time the arms alternately, so that all meet the same conditions; the order changes from pair to pair.

    The first two pairs, which compile or choose algorithms, are not counted. Ends after `seconds` or `most` pairs, but
    not before `least`.

    Args:
        arms: functions that run a block and return its seconds, by name.
    """
    taken: dict[str, list[float]] = {name: [] for name in arms}
    end = time.monotonic() + seconds
    for pair in range(-1, 2) if ask.reduced else range(-2, most):
        if pair >= least and time.monotonic() > end:
            break
        for name in sorted(arms, reverse=pair % 2 == 0):
            spent = arms[name]()
            if pair >= 0:
                taken[name].append(spent)
    return taken
