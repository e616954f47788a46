"""Check that all runs of a command can be evaluated after the same numbers of training samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.core.errors import UserError
from harness.core.spec import RunSpec


def check(specs: Sequence[RunSpec], target_accuracy: float | None = None) -> None:
    """Raise UserError if a run cannot be evaluated after the requested numbers of samples, or the target is invalid.

    Evaluations take place between blocks of steps, outside measured time. If the multiples of
    measure.evaluate_every_samples are ends of blocks in every run, all runs are evaluated after exactly these.
    """
    if target_accuracy is not None:
        if not 0 < target_accuracy < 1:
            raise UserError(f"target_accuracy={target_accuracy:g}: give a fraction between 0 and 1, such as 0.6")
        if any(spec.measure.evaluate_samples == 0 for spec in specs):
            raise UserError(
                f"target_accuracy={target_accuracy:g} with measure.evaluate_samples=0 has no effect; set "
                "evaluate_samples=-1 to score all test samples"
            )
    asking = [spec for spec in specs if spec.measure.evaluate_every_samples]
    common = math.lcm(*(_block(spec) for spec in asking))
    for spec in asking:
        measure, every = spec.measure, spec.measure.evaluate_every_samples
        given = f"measure.evaluate_every_samples={every}"
        if measure.evaluate_samples == 0:
            raise UserError(
                f"{given} with measure.evaluate_samples=0 would score nothing; set evaluate_samples=-1 to score all"
            )
        if not measure.fixed:
            raise UserError(
                f"{given} needs a number of steps that is the same for all runs; set measure.precision=null and "
                "measure.warmup_limit_steps=null, or take measure=learning"
            )
        if measure.warmup_steps % measure.block_steps:
            raise UserError(
                f"{given} needs whole blocks of steps; take a multiple of measure.block_steps={measure.block_steps} "
                f"for measure.warmup_steps, which is {measure.warmup_steps}"
            )
        if every % _block(spec):
            raise UserError(
                f"{given}: with gpus={spec.gpus} a block of steps ends every {_block(spec)} samples only "
                f"(measure.block_steps={measure.block_steps} x a global batch of {spec.global_batch}); take a multiple "
                f"of {common}, such as {-(-every // common) * common}, that suits every run of this command"
            )
        steps = measure.warmup_steps + measure.steps
        if every > steps * spec.global_batch:
            raise UserError(
                f"{given} never comes with gpus={spec.gpus}: the run has {steps * spec.global_batch} samples ({steps} "
                f"steps of {spec.global_batch}); take more measure.steps, or evaluate more often"
            )


def _block(spec: RunSpec) -> int:
    """Return the training samples, over all ranks, in a block of steps."""
    return spec.measure.block_steps * spec.global_batch
