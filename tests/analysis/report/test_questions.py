"""The first answers of a report."""

from __future__ import annotations

import pytest
from study_builder import Logs, StudyBuilder, spec_of

from analysis.read.study import read_study
from analysis.report.answers import answers_of
from analysis.report.findings import findings_of
from analysis.report.questions import Reply, replies_of


def asked(study: StudyBuilder) -> list[Reply]:
    findings = findings_of(read_study(study.folder))
    return replies_of(findings, answers_of(findings.points, findings.losses))


def add(study: StudyBuilder, gpus: int, seconds: float, repeats: int = 3, **spec: object) -> None:
    """Runs of 40 blocks, each a little slower than the one before."""
    for repeat in range(repeats):
        blocks = [seconds * (1 + 0.01 * repeat) * (1 + 0.001 * (i % 3)) for i in range(40)]
        study.add(spec_of(gpus, repeat=repeat, **spec), Logs(block_seconds=blocks))


def test_answers_name_reach_speed_and_cost_of_the_next_size(study: StudyBuilder) -> None:
    for gpus, seconds in ((1, 1.0), (2, 1.25), (4, 2.5)):
        add(study, gpus, seconds)
        add(study, gpus, 2 * seconds, strategy="horovod")
    reach, limit, fastest, following = asked(study)
    # 4 GPUs do 4 times the work in 2.5 times the time; 2 GPUs twice the work in 1.25 times the time: 80 %.
    assert reach.question == "How far does it scale?"
    assert reach.answer.startswith("Largest speedup of 2 series: PyTorch ")
    assert "on 4 GPUs: 40 % efficiency. Up to 2 GPUs it is 70 % or more." in reach.answer
    assert limit.answer == "Not known: no probes in the logs."
    # 4 GPUs x 128 samples x 10 steps in 2.5 s x 1.01 x 1.000975, the means of the runs and of the blocks.
    assert fastest.answer.startswith("On 4 GPUs: PyTorch DDP, at 2,026 samples/s; a test shows that it is faster than")
    assert following.answer.startswith("On 8 GPUs, PyTorch ")
    assert following.answer.endswith("(90 % prediction interval).")


def test_a_difference_that_no_test_shows_is_not_called_one(study: StudyBuilder) -> None:
    for gpus in (1, 2):
        add(study, gpus, 1.0)
        add(study, gpus, 1.001, strategy="horovod")
    assert asked(study)[2].answer.endswith("no test shows a difference from PyTorch Horovod.")


@pytest.mark.parametrize("repeats", [1, 3])
def test_one_series_has_nothing_to_be_compared_with(study: StudyBuilder, repeats: int) -> None:
    add(study, 1, 1.0, repeats)
    reach, limit, fastest, following = asked(study)
    assert reach.answer.startswith("Not measured: no series has two sizes. ")
    assert limit.answer == "Not known: it takes two sizes to see a loss."
    assert fastest.answer == "Only one series was measured."
    assert following.answer.startswith("Not predicted: measured on 1 GPU only")


def test_single_runs_are_not_called_faster(study: StudyBuilder) -> None:
    for gpus in (1, 2):
        add(study, gpus, 1.0, repeats=1)
        add(study, gpus, 2.0, repeats=1, strategy="horovod")
    reply = asked(study)[2]
    assert reply.answer.endswith("whether by chance was not tested.")
    assert reply.marks == ("single run",)


def test_a_point_that_shows_no_scaling_is_named_only_if_there_is_no_other(study: StudyBuilder) -> None:
    add(study, 1, 1.0)
    add(study, 2, 1.6)
    study.completed(1, framework="jax")
    study.add(spec_of(2, framework="jax"), Logs(), result={"oversubscribed": "2 ranks share 1 GPU"})
    assert "PyTorch DDP reaches " in asked(study)[0].answer


def test_without_a_completed_run_nothing_is_answered(study: StudyBuilder) -> None:
    study.add(spec_of(1), None, finished=False)
    assert asked(study) == []
