"""The time-to-accuracy recipe on Fashion-MNIST with three seeds each in bf16 and fp16: does mixed precision learn?

Uses the configuration of `+experiment=time_to_accuracy` (491,520 samples) with another data set, one run after another
in one process. Times are of training only, in blocks between fences, excluding cuDNN's autotuning in the first steps.
There is no published result for this recipe on this data set; the bound is the accuracy of two convolutions in the data
set's own list of results (Xiao et al. 2017), far above what broken loss scaling achieves.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import numpy as np

from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.harness_runs import needs_hydra
from benchmarks.gpu_check.sections import Ask, Report, Skipped
from harness.core.data_location import locate
from harness.core.errors import DataError
from harness.core.spec import RunSpec
from harness.worker.adapter import Adapter
from harness.worker.loop import score
from harness.worker.test_time_augmentation import logits_of

SEEDS = 3
BOUND = "≥ 0.9"
BLOCK, FIRST = 10, 20
EVALUATED = 500


def run(ask: Ask, report: Report) -> None:
    needs_hydra()
    if not ask.reduced:
        try:
            locate("fashion_mnist", "idx", str(ask.data))
        except DataError:
            raise Skipped(
                f"no Fashion-MNIST in {ask.data}; sbatch/data/fashion-mnist.sh brings it, --data names its folder"
            ) from None
    precisions = ("bf16",) if ask.reduced else (*runs.bf16(), "fp16")
    longest = 0.0
    found: dict[str, list[tuple[float, float]]] = {precision: [] for precision in precisions}
    # Seed by seed, so that with too little time each precision has the same number.
    for seed in range(1 if ask.reduced else SEEDS):
        for precision in precisions:
            if ask.seconds_left < longest:
                continue
            before = ask.seconds_left
            found[precision].append(trained(ask, spec_of(ask, precision, seed)))
            longest = max(longest, before - ask.seconds_left)
    for precision, pairs in found.items():
        if not pairs:
            continue
        accuracies, seconds = zip(*pairs, strict=True)
        # Too few seeds for a 95 % interval: use the range.
        ends = [(min(values), max(values)) if len(values) > 1 else None for values in (accuracies, seconds)]
        report(Figure(f"{precision}, accuracy, mean of seeds", statistics.mean(accuracies), "", ends[0], len(pairs)))
        report(Figure(f"{precision}, accuracy, worst seed", min(accuracies), "", None, len(pairs), ask.bound(BOUND)))
        report(Figure(f"{precision}, training, median of seeds", statistics.median(seconds), "s", ends[1], len(pairs)))
    if not ask.reduced and (few := [p for p in precisions if len(found[p]) < SEEDS]):
        report(Figure("seeds that the time was too short for", sum(SEEDS - len(found[p]) for p in few), bound="= 0"))


def spec_of(ask: Ask, precision: str, seed: int) -> RunSpec:
    """The spec as `python -m harness` plans it."""
    from harness.config import composition
    from harness.plan.request import request

    composition.register()
    small = ("dataset=synthetic", "dataset.train_samples=512", "dataset.test_samples=64", "batch=16")
    overrides = [
        *("+experiment=time_to_accuracy", f"precision={precision}", f"seed={seed}", "gpus=1", "strategy=plain"),
        *("cluster=local", f"cluster.device={ask.device}", f"framework.environment={sys.executable}"),
        *(f"data.root={ask.data}", *(small if ask.reduced else ("dataset=fashion_mnist",))),
    ]
    # The experiment sweeps over ranks and seeds, so it is composed as a sweep of one point.
    [point] = composition.compose(overrides, True, "config", None)
    return request(point).spec


def trained(ask: Ask, spec: RunSpec) -> tuple[float, float]:
    """Return (accuracy on the test images, seconds of training after the first steps)."""
    _, test = runs.splits(spec.dataset, ask.data)
    with runs.adapter_of(spec, ask) as adapter:
        blocks, first = (1, 1) if ask.reduced else ((spec.measure.most_steps - FIRST) // BLOCK, FIRST)
        runs.seconds(adapter, adapter.step, first)
        seconds = sum(runs.seconds(adapter, adapter.step, 2 if ask.reduced else BLOCK) for _ in range(blocks))
        return accuracy(adapter, test, spec.measure.evaluate_views), seconds


def accuracy(adapter: Adapter, test: Any, views: int) -> float:
    correct = 0
    with adapter.evaluation():
        for start in range(0, len(test), EVALUATED):
            indices = np.arange(start, min(start + EVALUATED, len(test)))
            images = np.ascontiguousarray(test.images(indices))
            correct += score(logits_of(adapter.logits, images, views), test.targets(indices))[1]
    return correct / len(test)
