"""CPU time per batch of 128 augmented images for each input pipeline: images of CIFAR-10's shape in memory, or with
`files`, JPEG files of 500 x 375 pixels for networks with 224 x 224 inputs.

    .envs/<framework>/bin/python -m benchmarks.pipelines <framework> [files]

CPU time of all threads and worker processes rather than wall time: it is what a rank's cores must provide, and it
hardly depends on other load. The pipelines alternate; prints median and range over ROUNDS rounds, in milliseconds per
batch.

Result (two cores of a virtual AMD EPYC under other load, n = 7 rounds of 40 batches): PyTorch: harness 0.51 ms,
framework 6.1, device (on the CPU) 2.1; TensorFlow: harness 0.58, framework 1.9; MXNet: harness 0.88, framework 4.5.
Files (n = 7 rounds of 4 batches): PyTorch: harness 224 ms, framework 250, dali (on the CPU) 257. Ranges are in
docs/data.md.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.core.spec import ClusterSpec, DatasetSpec, InputSpec, MeasureSpec, OptimizerSpec, Placement, RunSpec
from harness.worker.data.batches import Pipeline
from harness.worker.data.pipelines import open_pipeline
from harness.worker.data.readers import open_dataset

ROUNDS, BATCH = 7, 128
# A turn ends when the consumed prefetched batches have been replaced and no CPU time has passed for this long.
BATCHES, FILE_BATCHES, REST_SECONDS = 40, 4, 0.5
IN_MEMORY = DatasetSpec("synthetic", "synthetic", 10, 3, 32, (0.5,) * 3, (0.25,) * 3, True, 10_000, 10)
IN_FILES = DatasetSpec("pictures", "imagefolder", 1, 3, 224, (0.5,) * 3, (0.25,) * 3)
PICTURES, WIDTH, HEIGHT, QUALITY = 256, 500, 375, 90


def main(framework: str, files: bool) -> None:
    own = importlib.import_module(f"harness.worker.{framework}").PIPELINES
    with tempfile.TemporaryDirectory() as folder:
        dataset, batches = IN_MEMORY, BATCHES
        if files:
            dataset, batches = IN_FILES, FILE_BATCHES
            _make_pictures(Path(folder))
        opened: dict[str, Pipeline] = {}
        for name in ("harness", *own):
            # `device` decodes all samples once before the first step; DALI is for files.
            if name == ("device" if files else "dali"):
                continue
            train = open_dataset(dataset, folder)[0]  # one per pipeline: decoding threads do not survive a fork
            data = InputSpec(name, 0, 0) if name == "device" else InputSpec(name, 1, 1 if files else 4)
            opened[name] = open_pipeline(_spec(framework, dataset, data), train, 0, 0, own)
            opened[name].start()
        taken: dict[str, list[float]] = {name: [] for name in opened}
        for number in range(1 + ROUNDS):
            for name, pipeline in opened.items():
                before = _cpu_seconds()
                for _ in range(batches):
                    next(pipeline)
                after = _at_rest()
                if number:  # the first round is warm-up
                    taken[name].append(1e3 * (after - before) / batches)
        for name, times in taken.items():
            print(f"{framework} {name}: {median(times):.2f} ms per batch ({min(times):.2f} to {max(times):.2f})")
        for pipeline in opened.values():
            pipeline.close()


def _make_pictures(folder: Path) -> None:
    """Write images of soft colours with noise, which makes decoding expensive: about 100 kB each."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for place in range(PICTURES + 1):
        soft = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
        pixels = np.asarray(soft).astype(int) + rng.integers(-16, 17, (HEIGHT, WIDTH, 3))
        path = folder / ("train" if place else "test") / "all" / f"{place}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=QUALITY)


def _at_rest() -> float:
    """Wait until nothing is being prepared, and return the CPU time."""
    last, now = -1.0, _cpu_seconds()
    while now - last > 0.02 * REST_SECONDS:
        time.sleep(REST_SECONDS)
        last, now = now, _cpu_seconds()
    return now


def _cpu_seconds() -> float:
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _spec(framework: str, dataset: DatasetSpec, data: InputSpec) -> RunSpec:
    options: dict[str, Any] = {}
    return RunSpec(
        framework,
        options,
        framework,
        "plain",
        options,
        "resnet20",
        dataset,
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
    main(sys.argv[1], sys.argv[2:] == ["files"])
