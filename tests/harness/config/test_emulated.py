"""Requests that framework=emulated supports, and the messages that reject others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.config import composition
from harness.core.errors import UserError
from harness.plan.request import StudyRequest, study_request


def asked(tmp_path: Path, *overrides: str) -> StudyRequest:
    python = tmp_path / "python"
    python.touch(mode=0o755)
    composition.register()
    fixed = ("framework=emulated", "dataset=synthetic", "cluster=local", f"framework.environment={python}")
    none = "measure.evaluate_samples=0"
    return study_request(composition.compose([*fixed, none, "cluster.device=cpu", *overrides], True, "config", None))


def test_emulated_costs_are_part_of_the_run_id(tmp_path: Path) -> None:
    found = asked(tmp_path, "gpus=1,2", "strategy=allreduce,mpi", "framework.options.stall_ms=3,4")
    assert len({request.spec.run_id for request in found.requests}) == 8
    assert found.requests[0].spec.framework_options["compute_ms"] == 20.0


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("measure.evaluate_samples=-1", "it trains nothing, and has no accuracy; set measure.evaluate_samples=0"),
        ("verify=true", "it has no network to show; set verify=false"),
        ("framework.options.compute_ms=-1", "framework.options.compute_ms=-1: give a number of at least 0"),
        ("framework.options.latency_ms=inf", "framework.options.latency_ms=inf: give a number of at least 0"),
        (
            "framework.options.backward_fraction=1.5",
            "framework.options.backward_fraction=1.5: give a number from 0 to 1",
        ),
        ("framework.options.jitter=0.5", "framework.options.jitter=0.5: give a number from 0 to 0.2"),
        ("framework.options.late_probability=2", "framework.options.late_probability=2: give a number from 0 to 1"),
        ("framework.options.bandwidth_mb=0", "framework.options.bandwidth_mb=0: give a number above 0, or null"),
        ("framework.options.straggler_rank=2 gpus=2", "with gpus=2 there are ranks 0 to 1"),
        (
            "strategy=horovod",
            "'horovod' is not offered by framework 'emulated'; emulated offers: plain, allreduce, mpi",
        ),
        ("strategy.options.compress=fp16", "strategy.options.compress has no effect in framework 'emulated'"),
        ("cluster=gpu8 cluster.device=cuda", "framework=emulated waits on the host, not on device cuda"),
    ],
)
def test_unsupported_emulated_requests_are_rejected(tmp_path: Path, overrides: str, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        asked(tmp_path, *overrides.split())
