"""MXNet's input pipeline: Gluon's DataLoader with threads.

Its worker processes would be forked while MXNet's engine has threads, and a killed one is replaced silently while the
loader waits for its batch forever.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple

import numpy as np
from mxnet.gluon.data import DataLoader

from harness.core.spec import FRAMEWORK, RunSpec
from harness.worker.data.batches import Batch, Pipeline
from harness.worker.data.samples import Keys, Samples
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split

# No limit on reading a batch: the heartbeat ends runs without progress.
PATIENCE_SECONDS = 7 * 24 * 3600


class GluonBatches(Pipeline):
    """`gluon.data.DataLoader` over single samples, batched in NumPy."""

    def __init__(self, spec: RunSpec, split: Split, draw: Draw, first_step: int) -> None:
        loader = DataLoader(
            Samples(split, draw),
            batch_sampler=Keys(draw, first_step),
            batchify_fn=stacked,
            num_workers=spec.data.workers,
            prefetch=spec.data.workers * spec.data.prefetch,
            thread_pool=True,
            timeout=PATIENCE_SECONDS,
        )
        self._iterator: Optional[Iterator[Batch]] = iter(loader)

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        return next(self._iterator)

    def close(self) -> None:
        self._iterator = None


def stacked(samples: List[Tuple[np.ndarray, Any]]) -> Batch:
    images, labels = zip(*samples)
    return np.stack(images), np.array(labels)


PIPELINES = {FRAMEWORK: GluonBatches}
