"""The part of frameworks.py that runs in a framework's environment.

    python -m benchmarks.sides.beside RUN_DIRECTORY PAIRS STEPS

Prints the seconds of each block of STEPS steps, alternating between our worker and the minimal loop.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import Placement, RunSpec, Site, read_run
from harness.worker.data.readers import open_dataset
from harness.worker.data.splits import Split
from harness.worker.data.stream import training_batches
from harness.worker.timing import timed


def plain_adapter(spec: RunSpec, site: Site) -> tuple[Any, Split]:
    """The worker of a single rank of the run without a strategy, and its training samples."""
    alone = {"strategy": "plain", "strategy_options": {}, "gpus": 1, "placement": Placement(1, 1)}
    spec = dataclasses.replace(spec, global_batch=spec.batch_per_gpu, **alone)
    train, _ = open_dataset(spec.dataset, site.data_root, spec.seed)
    batches = training_batches(train, spec.dataset, spec.global_batch, 0, 1, spec.seed)
    framework = importlib.import_module(f"harness.worker.{spec.framework}")
    return framework.Adapter(spec, site, Rendezvous(0, 1, 0, 1, "127.0.0.1", 0), batches), train


def main(run_dir: Path, pairs: int, steps: int) -> None:
    spec, site = read_run(run_dir)
    # First, because it sets how many threads the framework may use.
    adapter, train = plain_adapter(spec, site)
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (len(train), 32, 32, 3)).astype(np.uint8)
    minimal = importlib.import_module(f"benchmarks.minimal.{spec.framework}")
    peer = minimal.trainer(images, random.randint(0, 10, len(train)), spec.batch_per_gpu)
    arms = {"ours": lambda: timed(adapter, adapter.step, steps).seconds, "peer": lambda: peer(steps)}
    seconds = {name: [] for name in arms}
    # Two uncounted rounds: the first steps compile or choose algorithms.
    for pair in range(-2, pairs):
        for name in sorted(arms, reverse=pair % 2 == 0):
            taken = arms[name]()
            if pair >= 0:
                seconds[name].append(taken)
    print(json.dumps(seconds))
    sys.stdout.flush()
    os._exit(0)  # see harness/worker/__main__.py


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
