"""The halves of tests of input pipelines that run inside a framework's environment (environments.in_environment)."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
from builders import SYNTHETIC, TEXT, make_spec

from harness.core.errors import DataError
from harness.core.spec import InputSpec, RunSpec
from harness.worker.data.batches import Pipeline
from harness.worker.data.pipelines import open_pipeline
from harness.worker.data.readers import open_dataset
from harness.worker.data.splits import ArraySplit

# Fewer samples than the steps take: epochs end in the middle of batches.
IMAGES = dataclasses.replace(SYNTHETIC, image_size=12, train_samples=50)
KINDS = {
    "images": IMAGES,
    "plain": dataclasses.replace(IMAGES, augment=False),
    "reflected": dataclasses.replace(IMAGES, crop_pixels=2, crop_reflect=True, alternating_flip=True),
    "text": TEXT,
}
STEPS, RESUMED = 6, 4
RNG = np.random.default_rng(0)


def spec(pipeline: str, workers: int, **changes: Any) -> RunSpec:
    data = InputSpec(pipeline, workers, 2 if workers else 0)
    return make_spec(**{"dataset": IMAGES, "data": data, "global_batch": 16, "batch_per_gpu": 8, **changes})


def opened(framework: str, asked: RunSpec, rank: int = 0, first_step: int = 0, split: Any = None) -> Pipeline:
    own = importlib.import_module(f"harness.worker.{framework}").PIPELINES
    pipeline = open_pipeline(asked, split or open_dataset(asked.dataset, None, 0)[0], rank, first_step, own)
    pipeline.start()
    return pipeline


def same_batches(framework: str, kinds: List[List[Any]]) -> Dict[str, Any]:
    """Return, for each (pipeline, workers, kind of data), whether the batches of two ranks, from the start and from a
    later step, equal those in NumPy byte for byte; and the message of a worker that cannot read a sample."""
    found: Dict[str, Any] = {"unreadable": unreadable(framework, "framework", 1)}
    for pipeline, workers, kind in kinds:
        dataset = KINDS[kind]
        equal = []
        for rank, first_step in itertools.product((0, 1), (0, RESUMED)):
            with opened(framework, spec(pipeline, workers, dataset=dataset), rank, first_step) as own:
                batches = [tuple(np.asarray(part) for part in batch) for batch in itertools.islice(own, STEPS)]
            with opened(framework, spec("harness", 1, dataset=dataset), rank, first_step) as reference:
                for batch, expected in zip(batches, itertools.islice(reference, STEPS)):
                    for part, wanted in zip(batch, expected):
                        equal.append(part.dtype == wanted.dtype and part.shape == wanted.shape)
                        equal.append(part.tobytes() == wanted.tobytes())
        found[f"{pipeline} {workers} {kind}"] = [len(equal), all(equal)]
    return found


class Unreadable(ArraySplit):
    def images(self, indices: np.ndarray) -> np.ndarray:
        if 3 in indices:
            raise DataError("image 3 cannot be read; put it back")
        return super().images(indices)


def unreadable(framework: str, pipeline: str, workers: int) -> str:
    """Return the message for a sample that cannot be read."""
    split = Unreadable(RNG.integers(0, 256, (50, 12, 12, 3), dtype=np.uint8), np.arange(50) % 10)
    with opened(framework, spec(pipeline, workers), split=split) as own:
        try:
            for _ in range(20):
                next(own)
        except DataError as error:
            return str(error)
    return "read"


def killed_worker() -> Dict[str, Any]:
    """Test PyTorch's loader with two processes: what they do when told to end, and the message when one is killed."""
    with opened("pytorch", spec("framework", 2)) as own:
        next(own), next(own)  # one from each worker: both are running
        processes = children(os.getpid())
        for process in processes:
            os.kill(process, signal.SIGTERM)
            os.kill(process, signal.SIGUSR2)
        for _ in range(8):  # more than were prefetched
            next(own)
        survivors = children(os.getpid())
        os.kill(processes[0], signal.SIGKILL)
        begin = time.monotonic()
        try:
            for _ in range(20):
                next(own)
            said = "went on"
        except DataError as error:
            said = str(error)
        return {"workers": len(processes), "after_signals": len(survivors), "said": said, "s": time.monotonic() - begin}


def orphans() -> List[str]:
    """Return the states of the processes left of a killed rank's workers."""
    code = "import pipelines_side, time; pipelines_side.hold()"
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, universal_newlines=True)
    assert rank.stdout is not None
    processes = [int(number) for number in rank.stdout.readline().split()]
    rank.kill()
    rank.wait()
    end = time.monotonic() + 60
    while time.monotonic() < end and any(map(alive, processes)):
        time.sleep(0.05)
    return [f"{len(processes)} workers", *(str(process) for process in processes if alive(process))]


def hold() -> None:
    own = opened("pytorch", spec("framework", 2))
    next(own)
    print(*children(os.getpid()), flush=True)
    time.sleep(60)


def children(process: int) -> List[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for task in tasks for number in task.read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
