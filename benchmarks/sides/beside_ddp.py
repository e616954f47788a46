"""The part of worker.py that runs as a rank, in PyTorch's environment.

    python -m benchmarks.sides.beside_ddp RUN_DIRECTORY PAIRS STEPS

Prints this rank's seconds of each block of STEPS steps, alternating between our worker and the minimal loop.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.sides.minimal_ddp import trainer
from harness.core.rendezvous import from_environment
from harness.core.spec import read_run
from harness.worker.adapter import ALIGN_BYTES
from harness.worker.data.readers import open_dataset
from harness.worker.data.stream import training_batches
from harness.worker.pytorch import Adapter
from harness.worker.timing import timed


def main(run_dir: Path, pairs: int, steps: int) -> None:
    spec, site = read_run(run_dir)
    rendezvous = from_environment(os.environ)
    train, _ = open_dataset(spec.dataset, site.data_root, spec.seed)
    batches = training_batches(
        train, spec.dataset, spec.global_batch, rendezvous.rank, rendezvous.world_size, spec.seed
    )
    adapter = Adapter(spec, site, rendezvous, batches)
    batches.start()
    peer = trainer(Path(site.data_root) / "fashion-mnist", spec.batch_per_gpu)
    arms = {"ours": lambda: timed(adapter, adapter.step, steps).seconds, "peer": lambda: peer(steps)}
    seconds = {name: [] for name in arms}
    # Two uncounted rounds: the first steps choose algorithms and allocate.
    for pair in range(-2, pairs):
        for name in sorted(arms, reverse=pair % 2 == 0):
            adapter.allreduce(ALIGN_BYTES)
            taken = arms[name]()
            if pair >= 0:
                seconds[name].append(taken)
    print(json.dumps(seconds))
    sys.stdout.flush()
    os._exit(0)  # see harness/worker/__main__.py


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
