"""Comparisons of frameworks in the report: baselines, equality of work, communication libraries."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from seen import Seen, Tags, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.equal_work import equal_work
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.findings import findings_of
from analysis.report.print.figures import figure_specs
from analysis.report.sentences import headlines
from analysis.report.terminal.tables import print_tables


def headlines_of(study: StudyBuilder) -> list[str]:
    read = read_study(study.folder)
    return headlines(points_of(read.runs, equal_work(read.folder, read.runs).differing))


def test_plain_baseline_is_stated_wherever_a_speedup_is(study: StudyBuilder) -> None:
    study.completed(1, strategy="plain")
    study.completed(1, seconds=1.25)
    study.completed(2, seconds=1.25)
    seen = Seen(study)
    assert [(row["relative_to_gpus"], row["relative_to_strategy"]) for row in seen.csv] == [("1", "plain")] * 3
    assert (
        seen.table.count("to 1 GPU, plain") == 3 + 2
    )  # in the table, and for the largest point also beside published figures
    assert "relative to 1 GPU, plain" in seen.svg
    assert "In every row: " in seen.html
    assert "; Speedup: to 1 GPU, plain." in seen.html
    text = words(seen.table)
    assert (
        "PyTorch DDP, resnet44 on cifar10 (weak scaling, 128 per GPU): 1.60× on 2 GPUs relative to 1 GPU, plain" in text
    )
    alone = "PyTorch alone, resnet44 on cifar10 (weak scaling, 128 per GPU): 1,280 samples/s on 1 GPU"
    assert f"{alone}; no speedup to state, the framework alone" in text


def test_wrapped_point_alone_is_relative_to_the_plain_one(study: StudyBuilder) -> None:
    study.completed(1, strategy="plain")
    study.completed(1, seconds=1.25)
    assert "0.800× on 1 GPU relative to 1 GPU, plain, 80 % efficiency" in words(Seen(study).table)


def test_plot_of_series_with_different_baselines_names_each_in_its_legend(study: StudyBuilder) -> None:
    study.completed(1, strategy="plain")
    for gpus in (2, 4):
        study.completed(gpus)
        study.completed(gpus, framework="jax")
    drawn = Seen(study).svg
    assert "relative to what the legend says of each series" in drawn
    assert drawn.count("relative to 1 GPU, plain") == 1
    assert drawn.count("relative to 2 GPUs") == 1
    assert "PyTorch alone" not in drawn


def test_framework_alone_is_drawn_where_nothing_is_relative_to_it(study: StudyBuilder) -> None:
    study.completed(1, strategy="plain")
    study.completed(2, framework="jax")
    drawn = Seen(study).svg
    assert "PyTorch alone" in drawn


def test_ideal_line_begins_at_the_baseline(study: StudyBuilder) -> None:
    study.completed(1, strategy="plain")
    study.completed(4, seconds=1.25)
    study.completed(8, seconds=1.25)
    spec = figure_specs(findings_of(read_study(study.folder)))["speedup"]
    ideal = [(row["gpus"], row["value"]) for row in spec["datasets"]["ideal"]]
    assert (ideal[0], ideal[-1]) == ((1, 1), (8, 8))


def test_work_that_differs_is_shown_wherever_the_figure_is(study: StudyBuilder) -> None:
    study.completed(2)
    study.add(spec_of(2, framework="jax"), Logs(gradients=(-9.0, 64.0), cached_batch_seconds=0.1, allreduce={8: 0.1}))
    study.completed(2, framework="tensorflow")
    seen = Seen(study)
    assert [row["marks"] for row in seen.csv] == ["work differs;single run", "single run", "single run"]
    assert "work differs" in seen.table.split("Equal work")[0]
    assert "work differs" in seen.svg
    assert (
        seen.html.count('<span class="mark warn">work differs</span>') == 7
    )  # answer, headline, points, costs, steps, efficiencies, allreduce
    (sentence,) = [line for line in headlines_of(study) if line.startswith("JAX")]
    assert "work differs" in sentence
    # |64 - 640| / 640
    problem = (
        "JAX allreduce, resnet44 on cifar10, 2 GPUs, global batch 256: "
        "its work differs from that of PyTorch DDP: first gradient by 9.0e-01 (bound 1.0e-03)"
    )
    assert f"problem: {problem}" in words(seen.table)
    assert problem in words(Tags(seen.html).text)
    assert [row["verdict"] for row in seen.work][:2] == ["reference", "differs: first gradient"]
    assert '<span class="mark warn">differs: first gradient</span>' in seen.html


def test_figures_of_equal_work_are_shown_with_their_bounds(study: StudyBuilder) -> None:
    study.completed(2)
    study.add(spec_of(2, framework="jax"), Logs(gradients=(-9.0, 640.064)))
    seen = Seen(study)
    assert re.search(r"JAX +resnet44 +weak +2 +PyTorch +658,586 +0, 1.0e-04", seen.table)
    assert re.search(r"allreduce +cifar10 +fp32 +256 +DDP +658,586 +1.0e-03", seen.table)
    assert re.search(r'"First gradient">0, \s*1.0e-04 <span class="sub">≤ 1.0e-03</span>', seen.html)
    assert "only the first gradient was compared; verify=true was not asked for" in words(Tags(seen.html).text)


@pytest.mark.parametrize("width", [80, 120])
def test_verdicts_are_in_a_narrow_terminal_too(study: StudyBuilder, width: int) -> None:
    study.completed(2)
    study.add(spec_of(2, framework="jax"), Logs(parameters=7))
    stream = io.StringIO()
    print_tables(Console(file=stream, width=width), findings_of(read_study(study.folder)))
    assert re.search(r"JAX allreduce +2 +PyTorch +differs: parameters", stream.getvalue())
    assert all(len(line) <= width for line in stream.getvalue().splitlines())


def test_study_of_one_framework_and_strategy_has_no_table_of_equal_work(study: StudyBuilder) -> None:
    study.completed(1)
    study.completed(2)
    seen = Seen(study)
    assert "Equal work" not in seen.table + seen.html
    assert seen.work == []


def test_series_says_what_carried_its_gradients_and_which_versions(study: StudyBuilder) -> None:
    for gpus, version in ((1, "2.13.0"), (2, "2.14.0")):
        logs = Logs(communication="Horovod over gloo", versions={"torch": version, "horovod": "0.28.1"})
        study.add(spec_of(gpus, strategy="horovod"), logs)
    seen = Seen(study)
    text = words(Tags(seen.html).text)
    versions = "horovod 0.28.1, torch 2.13.0 / horovod 0.28.1, torch 2.14.0"
    assert f"NVIDIA H100 · communication: Horovod over gloo · versions: {versions}" in text
    assert [row["communication"] for row in seen.csv] == ["Horovod over gloo"] * 2
    assert seen.csv[0]["versions"] == "horovod 0.28.1, torch 2.13.0"
