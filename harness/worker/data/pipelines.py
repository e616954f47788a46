"""Open the run's input pipeline: the NumPy one, or one of its framework."""

from __future__ import annotations

from typing import Callable, Mapping

from harness.core.errors import DataError
from harness.core.spec import HARNESS, RunSpec
from harness.worker.data.batches import Pipeline
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split
from harness.worker.data.stream import ShardedSplit, training_batches

# (spec, samples, draw, first step) -> pipeline
Opener = Callable[[RunSpec, Split, Draw, int], Pipeline]


def open_pipeline(spec: RunSpec, train: Split, rank: int, first_step: int, own: Mapping[str, Opener]) -> Pipeline:
    """Return the batches of `rank` from `first_step` on. own: the framework's pipelines by their name in
    `data.pipeline`.

    Raises DataError if there is no such pipeline or it cannot read the data set.
    """
    share = (spec.global_batch, rank // spec.ranks_per_replica, spec.replicas)
    if spec.data.pipeline == HARNESS:
        return training_batches(train, spec.dataset, *share, spec.seed, first_step, spec.data.prefetch)
    if spec.data.pipeline not in own or isinstance(train, ShardedSplit):
        raise DataError(
            f"data.pipeline={spec.data.pipeline} is not offered by framework '{spec.framework}' with reader "
            f"'{spec.dataset.reader}'; use data.pipeline={HARNESS}"
        )
    draw = Draw(len(train), spec.dataset, *share, spec.seed)
    return own[spec.data.pipeline](spec, train, draw, first_step)
