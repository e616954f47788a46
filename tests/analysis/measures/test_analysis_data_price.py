"""The cost of real data, compared with the same points on synthetic samples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from seen import Seen, words
from study_builder import DATASET, Logs, StudyBuilder, spec_of

from analysis.measures.data_price import price_sentences, prices
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.stats.estimates import mean_difference

MADE = dataclasses.replace(
    DATASET,
    name="cifar10-synthetic",
    reader="synthetic",
    train_samples=50_000,
    test_samples=10_000,
    stands_for="cifar10",
)


def found(study: StudyBuilder) -> list[dict[str, Any]]:
    runs = read_study(study.folder).runs
    return prices(points_of(runs))


def repeated(study: StudyBuilder, gpus: int, blocks: list[float], **changes: Any) -> None:
    """Add one run for each duration of its blocks of ten steps, in seconds."""
    for repeat, seconds in enumerate(blocks):
        study.completed(gpus, seconds, repeat=repeat, **changes)


def test_a_pair_has_a_price_with_an_interval_from_its_runs(study: StudyBuilder) -> None:
    repeated(study, 2, [1.4, 1.5, 1.6])
    repeated(study, 2, [0.9, 1.0, 1.1], dataset=MADE)
    [row] = found(study)
    # Variances of 0.01^2 per step, three runs each: half of the interval is t(0.975, 4) = 2.776 (any table) times
    # sqrt(2 * 0.0001 / 3).
    half = 2.776 * math.sqrt(2 * 0.0001 / 3)
    assert row["dataset"] == "cifar10"
    assert row["price_seconds"] == pytest.approx(0.05)
    assert row["price_seconds_low"] == pytest.approx(0.05 - half, abs=1e-5)
    assert row["price_seconds_high"] == pytest.approx(0.05 + half, abs=1e-5)
    assert row["price_fraction"] == pytest.approx(0.5)
    [sentence] = price_sentences([row])
    assert sentence == (
        "real data, PyTorch DDP, resnet44 on cifar10 on 2 GPUs: 50.0 ms per step, 50.0 % (150 ms per step "
        "instead of 100 ms; 95 % interval 27.3–72.7 ms, from 3 and 3 runs)."
    )
    seen = Seen(study)
    assert words(sentence) in words(seen.table)
    assert "Price of real data" in seen.html
    assert "27.3–72.7 ms" in seen.html


def test_single_runs_and_marks_are_said_and_a_point_alone_has_no_price(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(block_seconds=[1.2] * 4), result={"oversubscribed": "2 ranks share 1 core"})
    study.completed(1, 1.0, dataset=MADE)
    study.completed(2, 1.0)
    study.completed(4, 1.0, dataset=MADE)
    study.completed(1, 1.0, dataset=MADE, precision="bf16")
    [row] = found(study)
    assert (row["gpus"], row["price_seconds_low"], row["price_basis"]) == (1, None, "single run")
    assert set(row["marks"]) == {"oversubscribed", "single run"}
    assert "a single run: no interval" in price_sentences([row])[0]
    assert "oversubscribed" in price_sentences([row])[0]


def test_an_interval_around_zero_is_no_difference_shown(study: StudyBuilder) -> None:
    repeated(study, 1, [1.0, 1.2])
    repeated(study, 1, [0.95, 1.2], dataset=MADE)
    assert "no difference shown" in price_sentences(found(study))[0]


def test_accuracy_of_made_samples_is_never_that_of_the_data_set(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(accuracy=0.61))
    study.add(spec_of(1, dataset=MADE), Logs(accuracy=0.97))
    points = points_of(read_study(study.folder).runs)
    assert {point.dataset: point.test_accuracy for point in points} == {
        "cifar10": 0.61,
        "cifar10-synthetic": 0.97,
    }
    note = "cifar10-synthetic is made from the seed, in the shape of cifar10: its accuracy says nothing of cifar10."
    assert words(note) in words(Seen(study).table)


def test_interval_needs_two_runs_each_and_accepts_equal_runs() -> None:
    assert mean_difference([1.0], [1.0, 2.0]).ends == (None, None)
    assert mean_difference([3.0, 3.0], [1.0, 1.0]).ends == (2.0, 2.0)
    _, low, high, *_ = mean_difference([3.0, 3.0], [1.0, 1.2])
    # Only the second varies: one degree of freedom, t(0.975, 1) = 12.71, standard error 0.1.
    assert (low, high) == (pytest.approx(1.9 - 1.271, abs=1e-3), pytest.approx(1.9 + 1.271, abs=1e-3))
