"""The order of the sentences at the top of every output."""

from __future__ import annotations

from study_builder import Logs, StudyBuilder, spec_of

from analysis.read.study import read_study
from analysis.report.findings import findings_of
from analysis.report.headline import headline_sentences
from harness.core.spec import STRONG, ClusterSpec


def said(study: StudyBuilder) -> list[str]:
    return headline_sentences(findings_of(read_study(study.folder)))


def test_speedups_come_first_and_every_series_has_a_headline(study: StudyBuilder) -> None:
    study.completed(1, model="resnet20")
    for gpus in (1, 2):
        shared = {"oversubscribed": "2 ranks share 1 GPU"} if gpus == 2 else None
        study.add(spec_of(gpus, framework="jax"), Logs(), result=shared)
        study.completed(2 * gpus, scaling=STRONG, batch_per_gpu=64 // gpus)
    study.add(spec_of(8, strategy="horovod"), Logs(), result={"status": "failed", "reason": "rank 3 has gone"})
    first, second, third, fourth = said(study)
    assert first.startswith("PyTorch DDP, resnet44")
    assert "on 4 GPUs relative to 2 GPUs: 50 % efficiency (single run)." in first
    assert second.startswith("JAX allreduce, resnet44, weak scaling, 128 per GPU reaches ")
    assert second.endswith("(oversubscribed, single run). This is not a scaling result: 2 ranks share 1 GPU.")
    assert "no speedup to state (single run)." in third
    assert fourth.startswith(
        "PyTorch Horovod, resnet44 on cifar10 (weak scaling, 128 per GPU): no figure for 8 GPUs (failed)."
    )


def test_ranks_on_processors_are_no_gpus(study: StudyBuilder) -> None:
    for gpus in (1, 2):
        study.completed(gpus, cluster=ClusterSpec("atlas", "cpu", 8))
    (sentence,) = said(study)
    assert "on 2 CPU ranks: 100 % efficiency" in sentence
    assert "GPU" not in sentence
