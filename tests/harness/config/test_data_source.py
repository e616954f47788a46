"""Real data, synthetic samples in its place, or both."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.config import composition
from harness.core.errors import UserError
from harness.core.spec import RunSpec
from harness.plan.request import study_request


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composition.register()
    monkeypatch.chdir(tmp_path)


def specs(*overrides: str, multirun: bool = False) -> list[RunSpec]:
    fixed = ("cluster=slurm", "cluster.device=cuda", "cluster.gpus_per_node=4", "data.root=nowhere")
    anywhere = f"framework.environment={sys.executable}"
    points = composition.compose([*fixed, anywhere, *overrides], multirun, "config", None)
    return [request.spec for request in study_request(points).requests]


def test_both_runs_each_point_with_real_and_as_many_synthetic_samples() -> None:
    found = specs("data=both", "data.check=false", "gpus=1,2", "baseline=both", multirun=True)
    assert [(s.strategy, s.gpus, s.dataset.name) for s in found] == [
        ("plain", 1, "cifar10"),
        ("plain", 1, "cifar10-synthetic"),
        ("allreduce", 1, "cifar10"),
        ("allreduce", 1, "cifar10-synthetic"),
        ("allreduce", 2, "cifar10"),
        ("allreduce", 2, "cifar10-synthetic"),
    ]
    real, made = found[0].dataset, found[1].dataset
    assert (real.reader, real.train_samples, real.stands_for) == ("cifar10", 0, "")
    assert (made.reader, made.train_samples, made.test_samples, made.stands_for) == (
        "synthetic",
        50_000,
        10_000,
        "cifar10",
    )
    assert (made.sample_shape, made.classes, made.augment) == (real.sample_shape, real.classes, real.augment)
    assert (made.mean, made.std) == (real.mean, real.std)
    assert len({spec.run_id for spec in found}) == len(found)


def test_a_sweep_over_the_sources_is_the_same_runs_as_both() -> None:
    swept = specs("data=real,synthetic", "data.check=false", "data.shuffle_buffer=7", multirun=True)
    assert {spec.run_id for spec in swept} == {spec.run_id for spec in specs("data=both", "data.check=false")}


def test_made_samples_need_no_files_and_real_data_does() -> None:
    [spec] = specs("data=synthetic", "dataset=indoor67", "dataset.train_samples=100", "model=resnet18")
    assert (spec.dataset.name, spec.dataset.train_samples) == ("indoor67-synthetic", 100)
    with pytest.raises(UserError, match="data set 'cifar10' was not found"):
        specs("data=both")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data=both", "dataset=synthetic"), "has no real data to compare with"),
        (
            ("data=synthetic", "dataset=text", "model=gpt_tiny"),
            "set dataset.train_samples to the number to generate",
        ),
        (("data=made",), "there is no 'made' in 'data'. Valid: both, real, synthetic"),
    ],
    ids=str,
)
def test_a_source_that_does_not_exist_gets_one_sentence(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        specs(*overrides)


def test_made_samples_of_a_synthetic_data_set_are_its_own() -> None:
    assert specs("data=synthetic", "dataset=synthetic") == specs("dataset=synthetic")
