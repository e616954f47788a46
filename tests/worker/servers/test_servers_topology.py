"""Which ranks are workers of the parameter servers, and how many samples an update has."""

from __future__ import annotations

import pytest
from builders import make_spec

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec
from harness.worker.servers.topology import topology


@pytest.mark.parametrize(("rule", "factor"), [("constant", 1.0), ("sqrt", 0.5**0.5), ("linear", 0.5)])
def test_an_asynchronous_update_has_the_learning_rate_of_its_own_samples(rule: str, factor: float) -> None:
    # The learning rate schedule counts the samples of all ranks: it is part of what is scaled, not of the factor.
    for course in ({}, {"warmup_steps": 4}, {"lr_peak_samples": 8, "lr_end_samples": 80}):
        spec = make_spec(
            strategy="ps_async",
            strategy_options={"servers": None},
            global_batch=8,
            batch_per_gpu=4,
            optimizer=OptimizerSpec(lr=0.1, lr_rule=rule, **course),
        )
        place = topology(spec, Rendezvous(0, 2, 0, 2, "127.0.0.1", 0))
        assert place.scaled(0.1) == pytest.approx(0.1 * factor), course
