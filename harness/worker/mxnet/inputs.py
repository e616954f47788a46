"""MXNet's input pipeline: Gluon's DataLoader, with threads.

Its worker processes would be forked from one in which MXNet's engine has threads, and one that is killed is replaced
without a word, while its batch is waited for in vain.
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

# Reading a batch may take as long as it takes: it is the heartbeat that ends a run without progress.
PATIENCE_SECONDS = 7 * 24 * 3600


class GluonBatches(Pipeline):
    """`gluon.data.DataLoader` over samples, one at a time, made into a batch in NumPy."""

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
