"""CUDA graphs: bitwise equality with eager steps, and the speed-up.

Bitwise: with deterministic kernels and a learning rate that float32 represents exactly, training with a graph gives the
same weights as eager training. By default cuDNN chooses algorithms by time and sums with atomics, so even two eager
runs differ; this is reported for comparison. Without a GPU the second variant is eager too.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any

from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import Figure, median
from benchmarks.gpu_check.sections import Ask, Report
from harness.core.spec import RunSpec

# Eleven steps run without the graph, one is captured.
STEPS, REDUCED_STEPS = 40, 3
# Bound for the mean loss of the last ten steps: forty steps amplify the last bit of the first by a few per cent at
# most.
AS_SHIPPED = 0.05
BATCHES, BLOCK = (32, 128, 512), 20


def equal(ask: Ask, report: Report) -> None:
    batch = 8 if ask.reduced else 128
    data = runs.images(8 if ask.reduced else 32, samples=256 if ask.reduced else 2048, augment=True)
    of = functools.partial(runs.spec_of, ask, "resnet20", data, batch)
    for precision in ("fp32",) if ask.reduced else ("fp32", "fp16", *runs.bf16()):
        fixed = [of(precision, deterministic=True, **options) for options in arms(ask)]
        (wanted, _), (found, _) = (trained(spec, ask) for spec in fixed)
        apart = runs.largest(found, wanted)
        report(Figure(f"{precision}, {second(ask)} against eager, largest difference", apart, bound="= 0"))
        eager, graph = (of(precision, **options) for options in arms(ask))
        losses = [trained(spec, ask)[1] for spec in (eager, eager, graph)]
        apart = abs(losses[1] / losses[0] - 1)
        report(Figure(f"{precision}, as shipped, loss of eager against eager", apart, "of loss"))
        apart = abs(losses[2] / losses[0] - 1)
        name = f"{precision}, as shipped, loss of {second(ask)} against eager"
        report(Figure(name, apart, "of loss", bound=f"≤ {AS_SHIPPED:g}"))


def gain(ask: Ask, report: Report) -> None:
    for number, batch in enumerate((8,) if ask.reduced else BATCHES):
        seconds = ask.seconds_left / (len(BATCHES) - number)
        one_gain(ask, report, batch, seconds)


def one_gain(ask: Ask, report: Report, batch: int, seconds: float) -> None:
    precision = "fp32" if ask.reduced else next(iter(runs.bf16()), "fp16")
    data = runs.images(8 if ask.reduced else 32, samples=256 if ask.reduced else 2048)
    with ExitStack() as stack:
        specs = [runs.spec_of(ask, "resnet20", data, batch, precision, **options) for options in arms(ask)]
        adapters = [stack.enter_context(runs.adapter_of(spec, ask)) for spec in specs]
        block = 2 if ask.reduced else BLOCK
        of = {
            name: functools.partial(runs.seconds, adapter, adapter.step, block)
            for name, adapter in zip(("eager", "graph"), adapters, strict=True)
        }
        # Building an adapter takes part of the time.
        taken = runs.pairs(ask, of, min(seconds - 4.0, ask.seconds_left))
    ratios = [a / b for a, b in zip(taken["eager"], taken["graph"], strict=True)]
    # A graph is never slower, except for a few per cent of noise.
    report(median(f"batch {batch} {precision}, eager / {second(ask)}", ratios, "of time", ask.bound("≥ 0.97")))
    report(median(f"batch {batch} {precision}, {second(ask)}", [1e3 * s / block for s in taken["graph"]], "ms a step"))


def trained(spec: RunSpec, ask: Ask) -> tuple[Any, float]:
    """Return the weights and the mean loss of the last ten steps."""
    with runs.adapter_of(spec, ask) as adapter:
        losses = runs.train(adapter, REDUCED_STEPS if ask.reduced else STEPS)[-10:]
        return adapter.weights(), sum(losses) / len(losses)


def arms(ask: Ask) -> tuple[dict[str, bool], dict[str, bool]]:
    """Options of the eager run and of the run with a graph."""
    return {"fused": True}, {"fused": True, "cuda_graph": not ask.reduced}


def second(ask: Ask) -> str:
    return "eager again" if ask.reduced else "graph"
