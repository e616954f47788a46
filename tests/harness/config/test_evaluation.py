"""When runs are evaluated, and requests rejected because not every number of GPUs can be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders import make_spec

from harness.config import evaluation
from harness.core.errors import UserError
from harness.core.spec import RunSpec


def asked(gpus: int, every: int, batch: int = 8, **measure: Any) -> RunSpec:
    """Make a weak-scaling spec with `batch` samples per rank, blocks of 2 steps, 2 warm-up and 8 measured steps."""
    values = {"warmup_steps": 2, "steps": 8, "evaluate_every_samples": every, **measure}
    spec = make_spec(gpus=gpus, global_batch=gpus * batch, batch_per_gpu=batch)
    return dataclasses.replace(spec, measure=dataclasses.replace(spec.measure, **values))


def test_runs_of_different_sizes_are_evaluated_after_the_same_numbers_of_samples() -> None:
    specs = [asked(gpus, 32) for gpus in (1, 2)]
    evaluation.check(specs)
    after = [[s * spec.global_batch for s in range(11) if spec.evaluates_after(s)] for spec in specs]
    # 80 and 160 samples in total; the evaluation at the end of training is not listed.
    assert after == [[32, 64], [32, 64, 96, 128]]


def test_default_evaluates_only_at_the_end() -> None:
    evaluation.check([asked(1, 0), asked(3, 0)])
    assert not any(asked(1, 0).evaluates_after(step) for step in range(11))


@pytest.mark.parametrize(
    ("target", "samples", "message"),
    [
        (0.0, -1, "between 0 and 1"),
        (60.0, -1, "target_accuracy=60: give a fraction"),
        (0.6, 0, "evaluate_samples=0 has no effect"),
    ],
)
def test_a_target_that_no_evaluation_can_reach_is_refused(target: float, samples: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluation.check([asked(1, 0, evaluate_samples=samples)], target)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        # Blocks of 16, 32 and 48 samples: the least common multiple is 96.
        ([asked(n, 32) for n in (1, 2, 3)], r"gpus=3 a block .* every 48 samples.* a multiple of 96, such as 96,"),
        ([asked(1, 40)], r"a multiple of 16, such as 48,"),
        ([asked(1, 96)], r"=96 never comes with gpus=1: the run has 80 samples \(10 steps of 8\)"),
        ([asked(1, 32, warmup_steps=3)], r"a multiple of measure.block_steps=2 for measure.warmup_steps, which is 3"),
        ([asked(1, 32, evaluate_samples=0)], "would score nothing"),
    ],
    ids=["not every size", "within a block", "never", "odd warm-up", "no test samples"],
)
def test_unequal_evaluations_are_rejected(specs: list[RunSpec], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluation.check(specs)
