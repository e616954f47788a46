"""The claim "A is faster than B" is made only if the test shows it, and only for the same work."""

from __future__ import annotations

import numpy as np
import pytest
from seen import Seen, Tags, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.text import percent
from analysis.measures.comparisons import COLUMNS, FASTER, NOT_SHOWN, Comparisons, comparisons_of
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.data.csv_tables import csv_text
from analysis.stats.estimates import ALPHA
from harness.core.spec import STRONG, Placement

FACTORS = (1.0, 1.02, 0.98)


def repeated(study: StudyBuilder, gpus: int, seconds: float, factors=FACTORS, **changes) -> None:
    for repeat, factor in enumerate(factors):
        study.add(spec_of(gpus, repeat=repeat, **changes), Logs(block_seconds=[seconds * factor] * 4))


def compared(study: StudyBuilder, differing=()) -> Comparisons:
    read = read_study(study.folder)
    return comparisons_of(points_of(read.runs, differing))


def test_faster_is_claimed_only_if_significant(study: StudyBuilder) -> None:
    repeated(study, 2, 1.0)
    repeated(study, 2, 1.5, strategy="horovod")
    (row,) = compared(study).rows
    assert (row["verdict"], row["faster"], row["slower"]) == (FASTER, "PyTorch DDP", "PyTorch Horovod")
    assert row["ratio"] == pytest.approx(1.5)
    assert row["ratio_low"] > 1
    seen = Seen(study)
    said = "2 GPUs, resnet44 on cifar10, fp32, global batch 256: PyTorch DDP is faster than PyTorch Horovod: 1.50×"
    assert said in words(seen.table)
    assert said in words(Tags(seen.html).text)
    assert "Welch's t test" in words(seen.table)
    assert "Welch's t test" in Tags(seen.html).text


def test_a_difference_that_runs_do_not_show_is_not_claimed(study: StudyBuilder) -> None:
    repeated(study, 2, 1.0)
    repeated(study, 2, 1.01, strategy="horovod")
    (row,) = compared(study).rows
    assert row["verdict"] == NOT_SHOWN
    assert row["ratio_low"] < 1 < row["ratio_high"]
    text = words(Seen(study).table)
    assert "no difference shown between PyTorch DDP and PyTorch Horovod" in text
    assert " or more would have been seen with a probability of 80 %" in text
    assert "is faster than" not in text


def test_with_two_runs_the_lack_of_power_is_said(study: StudyBuilder) -> None:
    repeated(study, 2, 1.0, (1.0, 1.1))
    repeated(study, 2, 1.2, (1.0, 1.1), strategy="horovod")
    (sentence,) = compared(study).sentences
    assert sentence.endswith("; below 3 runs hardly any can be")


def test_many_pairs_without_a_difference_share_a_sentence_and_one_with_a_difference_has_its_own(
    study: StudyBuilder,
) -> None:
    alike = (("pytorch", "allreduce"), ("pytorch", "horovod"), ("mxnet", "allreduce"))
    for framework, strategy in alike:
        repeated(study, 2, 1.0, framework=framework, strategy=strategy)
    assert [sentence.count("no difference shown between") for sentence in compared(study).sentences] == [1, 1, 1]
    repeated(study, 2, 1.0, (1.0, 1.1, 0.9), framework="jax")
    repeated(study, 2, 9.0, framework="keras")
    found = compared(study)
    start = "2 GPUs, resnet44 on cifar10, fp32, global batch 256: no difference shown in 6 pairs of 4 series ("
    [together] = [sentence for sentence in found.sentences if sentence.startswith(start)]
    slower = [sentence for sentence in found.sentences if sentence != together]
    assert len(found.rows) == 10
    for name in ("PyTorch DDP", "PyTorch Horovod", "MXNet KVStore", "JAX allreduce"):
        assert name in together
    # That of the pairs with the noisiest series: the others' is smaller.
    visible = [row["visible_factor"] for row in found.rows if row["verdict"] == NOT_SHOWN]
    assert f"in every pair a difference of {percent(max(visible) - 1, 1)} or more would have been seen" in together
    assert min(visible) < max(visible)
    assert len(slower) == 4
    assert all("is faster than Keras" in sentence for sentence in slower)


def test_of_many_pairs_with_two_runs_the_lack_of_power_is_said(study: StudyBuilder) -> None:
    for framework in ("pytorch", "mxnet", "jax", "keras"):
        repeated(study, 2, 1.0, (1.0, 1.1), framework=framework)
    (sentence,) = compared(study).sentences
    assert "no difference shown in 6 pairs of 4 series" in sentence
    assert sentence.endswith("; below 3 runs hardly any can be")


def test_single_runs_are_not_compared(study: StudyBuilder) -> None:
    repeated(study, 2, 1.0)
    study.completed(2, seconds=9.0, strategy="horovod")
    found = compared(study)
    assert found.rows == ()
    assert found.left_out[0].startswith("1 pair of series with the same work not compared: no test without 2")
    text = words(Seen(study).table)
    assert "is faster than" not in text
    assert "repeats=3 measures each point in so many jobs" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "resnet20"},
        {"precision": "bf16"},
        {"batch_per_gpu": 64},
        {"scaling": STRONG},
        {"placement": Placement(2, 1)},
    ],
)
def test_other_work_or_another_placement_is_not_compared(study: StudyBuilder, changes: dict) -> None:
    repeated(study, 2, 1.0)
    repeated(study, 2, 2.0, strategy="horovod", **changes)
    assert compared(study) == Comparisons((), ())


def test_points_whose_work_differs_are_not_compared(study: StudyBuilder) -> None:
    repeated(study, 2, 1.0)
    repeated(study, 2, 2.0, framework="jax")
    jax = next(run["point"] for run in read_study(study.folder).runs if run["framework"] == "jax")
    assert compared(study, {jax}) == Comparisons((), ("1 pair of series not compared: their work differs",))


def test_runs_alike_to_the_last_digit_are_not_tested(study: StudyBuilder) -> None:
    repeated(study, 2, 1.0, (1.0, 1.0))
    repeated(study, 2, 2.0, (1.0, 1.0), strategy="horovod")
    (row,) = compared(study).rows
    assert row["verdict"] == "not tested"
    assert "were not tested: no interval: the 2 runs are alike to the last digit" in row["sentence"]
    assert csv_text(compared(study).rows, COLUMNS).count("\n") == 2


def test_oversubscribed_points_are_compared_and_say_so(study: StudyBuilder) -> None:
    for strategy, seconds in (("allreduce", 1.0), ("horovod", 2.0)):
        for repeat, factor in enumerate(FACTORS):
            logs = Logs(block_seconds=[seconds * factor] * 4)
            shared = {"oversubscribed": "2 ranks share 1 GPU"}
            study.add(spec_of(2, strategy=strategy, repeat=repeat), logs, result=shared)
    (sentence,) = compared(study).sentences
    assert sentence.endswith("; oversubscribed)")


def test_equal_series_are_rarely_called_faster() -> None:
    """Holm's bound over all pairs of five equal series: at most ALPHA of the studies make a false claim."""
    from itertools import combinations

    from analysis.stats.estimates import holm, of_runs, rate_ratio

    rng = np.random.default_rng(4)
    studies = 400
    wrong = 0
    for _ in range(studies):
        series = [of_runs(costs) for costs in rng.normal(1, 0.05, (5, 4)).tolist()]
        p = holm([rate_ratio(a, b).p_value() for a, b in combinations(series, 2)])
        wrong += min(p) < ALPHA
    assert wrong / studies <= 0.08  # ALPHA and three standard errors of 400 studies
