"""Published figures beside a study's own: sentences, and when the two are not comparable."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from project import PROJECT
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.published import Beside, beside_published, published
from harness.core.spec import Placement

V100 = "Tesla V100-SXM2-16GB"
IRIS = {"model": "resnet44", "dataset": dataclasses.replace(spec_of().dataset, name="cifar10")}


def add(study: StudyBuilder, gpus: int, seconds: float, device: str = V100, **changes: Any) -> None:
    per_node = min(gpus, 4)
    placement = changes.pop("placement", Placement(gpus // per_node, per_node))
    logs = Logs(block_seconds=[seconds] * 4, device_name=device, device=changes.pop("device", None))
    study.add(spec_of(gpus, placement=placement, **{**IRIS, **changes}), logs)


def beside(study: StudyBuilder) -> list[Beside]:
    return beside_published(points_of(read_study(study.folder).runs))


def test_the_headline_of_mahon_stands_beside_the_studys_own_figure_with_both_batches(study: StudyBuilder) -> None:
    add(study, 1, 1.0)
    add(study, 12, 1.25)  # 12 times the samples in 1.25 times the time
    [both] = beside(study)
    assert both.published.startswith("10.11× on 12 GPUs relative to 1 GPU: Mahon et al., CCGRID 2020")
    assert "4 V100-SXM2 to a node" in both.published
    assert "the source gives no spread" in both.published
    assert both.own.startswith("9.60× on 12 GPUs relative to 1 GPU")
    for text in (V100, "3 x 4", "weak scaling, global batch 1,536, 128 per GPU", "cluster atlas"):
        assert text in both.own
    # The same machine, but the source does not state its scaling.
    assert both.verdict == (
        "the same setting, as far as the source states it; "
        "comparable only if it means weak scaling, which it does not say"
    )
    seen = Seen(study)
    for text in (both.published, both.own, both.verdict):
        assert words(text) in words(seen.table)
        assert words(text) in words(seen.html)


@pytest.mark.parametrize(
    ("gpus", "changes", "reason"),
    [
        (12, {"device": "NVIDIA H100"}, "another GPU: NVIDIA H100, not V100-SXM2"),
        (12, {"placement": Placement(2, 6)}, "6 GPUs to a node, not 4"),
        (8, {}, "another number of GPUs: 8, not 12"),
    ],
)
def test_differences_are_reported(study: StudyBuilder, gpus: int, changes: dict[str, Any], reason: str) -> None:
    device = changes.pop("device", V100)
    for n in (1, gpus):
        add(study, n, 1.0, device, **(changes if n > 1 else {}))
    [both] = beside(study)
    assert both.verdict.startswith("not comparable: ")
    assert reason in both.verdict
    assert "whether the source means weak scaling is not known" in both.verdict


def test_ranks_on_a_cpu_are_not_comparable(study: StudyBuilder) -> None:
    cpu = dataclasses.replace(spec_of().cluster, device="cpu")
    for gpus in (1, 2):
        spec = spec_of(gpus, cluster=cpu, **IRIS)
        study.add(spec, Logs(device_name="Some CPU"), site={"oversubscribed": "2 ranks share 1 core"})
    [both] = beside(study)
    assert "this study ran on CPUs" in both.verdict
    assert "oversubscribed: 2 ranks share 1 core" in both.verdict
    assert "not comparable" in words(Seen(study).html)


@pytest.mark.parametrize("other", [{"model": "resnet20"}, {"strategy": "horovod"}, {"framework": "mxnet"}])
def test_other_series_have_no_published_figure(study: StudyBuilder, other: dict[str, Any]) -> None:
    for gpus in (1, 12):
        add(study, gpus, 1.0, **other)
    assert beside(study) == []
    assert "ublished" not in Seen(study).html


def test_one_gpu_alone_has_no_speedup_to_compare(study: StudyBuilder) -> None:
    add(study, 1, 1.0)
    assert beside(study) == []


def test_every_figure_has_a_source_a_page_and_what_is_not_known() -> None:
    for figure in published():
        assert figure.source
        path, _, heading = figure.page.partition("#")
        page = (PROJECT / path).read_text(encoding="utf-8")
        [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
        assert figure.source in section
        assert f"{figure.speedup:g}" in section
        assert figure.not_known
