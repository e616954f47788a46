"""The configuration of `measure`: accepted and rejected values."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from builders import make_spec

from harness.config import composition
from harness.core.errors import UserError
from harness.core.spec import MeasureSpec, RunSpec
from harness.plan.request import study_request

FIXED = ("cluster=iris", f"framework.environment={sys.executable}", "dataset=synthetic")


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composition.register()
    monkeypatch.chdir(tmp_path)


def asked(*overrides: str) -> RunSpec:
    (request,) = study_request(composition.compose([*overrides, *FIXED], False, "config", None)).requests
    return request.spec


def test_the_default_is_adaptive_and_what_compares_accuracy_is_not() -> None:
    measure = asked().measure
    assert (measure.precision, measure.warmup_limit_steps, measure.fixed) == (0.02, 200, False)
    assert measure.most_steps == 1200
    assert asked("measure.precision=null").measure.steps == 200
    # Too few blocks to stop early: all of them are taken.
    assert asked("measure.steps=100").measure.steps == 100
    for fixed in ("learning", "smoke"):
        measure = asked(f"measure={fixed}", "batch=256").measure
        assert measure.fixed
        assert measure.most_steps == measure.warmup_steps + measure.steps
    # Numerical precision is a different key.
    assert (asked("precision=fp16").precision, asked("precision=fp16").measure.precision) == ("fp16", 0.02)


def test_runs_of_before_keep_their_ids() -> None:
    before = make_spec()
    assert before.run_id == make_spec(measure=dataclasses.replace(before.measure, precision=None)).run_id
    for later in ({"precision": 0.02}, {"warmup_limit_steps": 60}, {"probe_limit": 0.2}, {"probe_rounds": 3}):
        assert make_spec(measure=dataclasses.replace(before.measure, **later)).run_id != before.run_id


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["measure.precision=2"], "measure.precision=2: give a fraction .* between 0 and 1, .* without measure"),
        (["measure.precision=0"], "measure.precision=0: give a fraction"),
        (["measure.precision=fp16"], "fp16"),
        (["measure.steps=50"], "measure.steps=50 with measure.precision=0.02: .* at least 60 steps, or"),
        (["measure.steps=55", "measure.precision=null"], "not a multiple of measure.block_steps=10"),
        (["measure.warmup_limit_steps=10"], "limit_steps=10 is below measure.warmup_steps=20"),
        (["measure.warmup_limit_steps=50"], "takes 6 blocks of measure.block_steps=10 .* at least 60, or null"),
        (["measure.probe_limit=0"], "measure.probe_limit=0.0: give a number above 0"),
        (["measure.probe_rounds=0"], "measure.probe_rounds=0: give a number of at least 1"),
        (
            ["measure.evaluate_every_samples=1280"],
            "evaluate_every_samples=1280 needs a number of steps that is the same .* measure=learning",
        ),
        (["measure.evaluate_views=3"], r"measure.evaluate_views=3: give 1 \(.*\), 2 \(.*\) or 6"),
        (["measure.evaluate_views=2", "measure.evaluate_samples=0"], "views=2: measure.evaluate_samples=0 scores noth"),
        (["dataset.crop_pixels=32"], "dataset.crop_pixels=32: images have 32 pixels; give fewer"),
        (
            ["dataset.augment=false", "dataset.crop_reflect=true"],
            "crop_reflect=true has no effect with dataset.augment",
        ),
        (
            ["dataset.reader=shards", "dataset.alternating_flip=true"],
            "alternating_flip=true is not offered with dataset.r",
        ),
        (
            ["fault=kill_rank", "fault.step=180"],
            "fault.step=180 may never come: .* may end after 180 steps; take an earl",
        ),
    ],
    ids=str,
)
def test_a_measure_that_cannot_be_is_refused_in_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        asked(*overrides)


def test_views_and_augmentation_make_another_run_and_their_defaults_leave_old_ids() -> None:
    plain = asked()
    changed = ("measure.evaluate_views=2", "dataset.crop_pixels=2", "dataset.crop_reflect=true")
    ids = {asked(change).run_id for change in (*changed, "dataset.alternating_flip=true")}
    assert len(ids | {plain.run_id}) == 5
    # The behaviour before these keys existed.
    assert (plain.measure.evaluate_views, plain.dataset.crop_pixels) == (1, 4)
    assert make_spec().run_id == "pytorch-allreduce-resnet20-2gpu-7e091d891838"


def test_a_limit_equal_to_the_warm_up_is_a_warm_up_of_that_length() -> None:
    measure = asked("measure.warmup_limit_steps=20", "measure.precision=null").measure
    assert measure.fixed
    assert MeasureSpec(warmup_steps=20, warmup_limit_steps=20).most_warmup_steps == 20
