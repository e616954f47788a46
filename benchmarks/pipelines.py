"""CPU time that each input pipeline takes for a batch of 128 images of CIFAR-10's shape, augmented, on the host.

    .envs/<framework>/bin/python -m benchmarks.pipelines <framework>

CPU time of all threads and worker processes, and not time on a clock: it is what a rank's cores have to give, and other
work on the machine hardly changes it. The pipelines take turns; the median and the range of ROUNDS rounds of BATCHES
batches are printed, in milliseconds per batch.

Result (two cores of a virtual AMD EPYC, busy with other work, n = 7 rounds of 40 batches): PyTorch: harness 0.51 ms,
framework 6.1, device (on the CPU) 2.1; TensorFlow: harness 0.58, framework 1.9; MXNet: harness 0.88, framework 4.5. The
ranges are in docs/data.md.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness.spec import ClusterSpec, DatasetSpec, InputSpec, MeasureSpec, OptimizerSpec, Placement, RunSpec
from harness.worker.data.batches import Pipeline
from harness.worker.data.pipelines import open_pipeline
from harness.worker.data.readers import open_dataset

ROUNDS, BATCHES, BATCH = 7, 40, 128
# What was made ahead is made again in this time, so that each turn holds the making of BATCHES batches.
REFILL_SECONDS = 0.5
DATA = DatasetSpec("synthetic", "synthetic", 10, 3, 32, (0.5,) * 3, (0.25,) * 3, True, 10_000, 10)


def main(framework: str) -> None:
    own = importlib.import_module(f"harness.worker.{framework}").PIPELINES
    train = open_dataset(DATA, None)[0]
    kinds = [InputSpec(name, 0, 0) if name == "device" else InputSpec(name, 1, 4) for name in ("harness", *own)]
    opened: dict[str, Pipeline] = {}
    for data in kinds:
        opened[data.pipeline] = open_pipeline(_spec(framework, data), train, 0, 0, own)
        opened[data.pipeline].start()
    taken: dict[str, list[float]] = {name: [] for name in opened}
    for number in range(1 + ROUNDS):
        for name, pipeline in opened.items():
            before = _cpu_seconds()
            for _ in range(BATCHES):
                next(pipeline)
            time.sleep(REFILL_SECONDS)
            if number:  # the first round is warm-up
                taken[name].append(1e3 * (_cpu_seconds() - before) / BATCHES)
    for name, times in taken.items():
        print(f"{framework} {name}: {median(times):.2f} ms per batch ({min(times):.2f} to {max(times):.2f})")
    for pipeline in opened.values():
        pipeline.close()


def _cpu_seconds() -> float:
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _spec(framework: str, data: InputSpec) -> RunSpec:
    options: dict[str, Any] = {}
    return RunSpec(
        framework,
        options,
        framework,
        "plain",
        options,
        "resnet20",
        DATA,
        "fp32",
        1,
        Placement(1, 1),
        "weak",
        BATCH,
        BATCH,
        0,
        0,
        OptimizerSpec(),
        MeasureSpec(),
        ClusterSpec("local", "cpu", 1),
        data=data,
    )


if __name__ == "__main__":
    main(sys.argv[1])
