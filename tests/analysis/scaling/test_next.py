"""`python -m analysis next`: the size to measure next, on studies with a known right answer."""

from __future__ import annotations

import json
import shlex

import pytest
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.terminal.next_size import command_of
from analysis.scaling.next_size import NextSizes, next_sizes, relative_width
from analysis.scaling.prediction import predict_series
from analysis.scaling.series import Size
from analysis.scaling.study_series import study_series
from harness.core.spec import Placement

HOUR = 1 / 60  # duration of each run in the tests: a minute


def asked(study: StudyBuilder, gpus: int, per_node: int | None = 4) -> NextSizes:
    read = read_study(study.folder)
    (source,) = study_series(points_of(read.runs))
    return next_sizes(source, gpus, per_node, None)


def measured(study: StudyBuilder, times: dict[int, list[float]], per_node: int = 4) -> StudyBuilder:
    """Add one run for each duration of blocks, in seconds, by number of GPUs."""
    for gpus, seconds in times.items():
        for repeat, each in enumerate(seconds):
            placement = Placement(max(1, gpus // per_node), min(gpus, per_node))
            study.completed(gpus, each, placement=placement, repeat=repeat)
    return study


def test_one_node_asks_for_a_second_node_first(study: StudyBuilder) -> None:
    """Only the cost between nodes is unknown; two nodes are the cheapest way to learn it."""
    found = asked(measured(study, {1: [1.0], 2: [1.02], 4: [1.03]}), 32)
    assert found.candidates[0].size == Size(8, 2)
    sizes = {one.size: one for one in found.candidates}
    # A larger size narrows more, but costs more node-hours.
    assert sizes[Size(16, 4)].narrowing > sizes[Size(8, 2)].narrowing
    assert sizes[Size(32, 8)].node_hours == pytest.approx(8 * HOUR)
    assert sizes[Size(8, 2)].node_hours == pytest.approx(2 * HOUR)
    hours = [one.node_hours_per_tenth or 0 for one in found.candidates]
    assert hours == sorted(hours)
    assert all(one.repeat is None and one.size.gpus > 4 for one in found.candidates)
    assert {found.width, *(one.width for one in found.candidates)} == {None}
    assert any("no size was measured twice" in line for line in found.basis)


def test_imagined_run_narrows_as_much_as_the_measured_one(study: StudyBuilder) -> None:
    before = asked(measured(study, {1: [1.0], 2: [1.02], 4: [1.03, 1.035]}), 32)
    expected = next(one.width for one in before.candidates if one.size.gpus == 16)
    assert before.today is not None
    assert expected is not None
    # After a measurement as predicted: 16 GPUs with the usual loss.
    after = asked(measured(study, {16: [1.06]}), 32)
    assert after.today is not None
    now = relative_width(after.today)
    assert now < 0.5 * relative_width(before.today)
    assert expected / 3 < now < 3 * expected


def test_noise_asks_for_repeats(study: StudyBuilder) -> None:
    """If repeats differ by 10 %, repeating a size is worth a run."""
    noisy = asked(measured(study, {1: [1.0, 1.15], 4: [1.18, 1.03], 8: [1.05, 1.22]}), 16)
    assert {one.repeat for one in noisy.candidates} == {None, 2}


def test_repeats_that_agree_are_no_candidates(study: StudyBuilder) -> None:
    calm = asked(measured(study, {1: [1.0, 1.0], 4: [1.03, 1.03], 8: [1.05, 1.05]}), 32)
    assert calm.candidates
    assert all(one.repeat is None for one in calm.candidates)


def test_series_without_an_answer_are_reported(study: StudyBuilder) -> None:
    measured(study, {4: [1.0]})
    assert asked(study, 512).why_not == (
        "512 GPUs are more than 64 times the largest measured size (4 GPUs), and nothing is said beyond: "
        "take a smaller target first"
    )
    assert asked(study, 10).why_not == "10 GPUs cannot be placed evenly on 3 nodes"
    one = asked(study, 16)
    assert one.candidates[0].size == Size(8, 2)
    assert any("one size was measured" in line for line in one.basis)


def test_answer_is_of_the_mean_that_predict_scatters_about(study: StudyBuilder) -> None:
    measured(study, {1: [1.0, 1.1], 2: [1.1, 1.0], 4: [1.0, 1.12]})
    read = read_study(study.folder)
    (source,) = study_series(points_of(read.runs))
    single = predict_series(source, (8,), 4, None).predicted[-1].rate
    mean = asked(study, 8).today
    assert single is not None
    assert mean is not None
    assert mean.median == pytest.approx(single.median, rel=0.01)
    assert relative_width(mean) < relative_width(single)


def test_command_is_the_studys_own_for_this_run_alone(study: StudyBuilder) -> None:
    for gpus in (1, 2, 4):
        for repeat, seconds in enumerate((1.0, 1.1)):
            study.add(spec_of(gpus, repeat=repeat), Logs(block_seconds=[seconds] * 4))
    study_line = "python -m harness -m gpus=1,2,4 repeats=2 framework=pytorch,mxnet batch=128 retry=all +env.A='x y' -m"
    invocation = {"t": 1.0, "command": shlex.split(study_line), "runs": study.requested, "arrays": []}
    other = {**invocation, "command": ["python", "-m", "harness", "gpus=1"], "runs": ["another"]}
    found = asked(study, 8, 8)
    for one in found.candidates:
        line = command_of(one, found, [invocation, other])
        repeat = "" if one.repeat is None else "repeat=2 "
        assert line == (f"python -m harness -m gpus={one.size.gpus} {repeat}framework=pytorch batch=128 '+env.A=x y'")
    assert {one.repeat for one in found.candidates} == {None, 2}
    assert command_of(found.candidates[0], found, [other, {"command": 3}, {}]) is None


def test_program_prints_the_line_and_refuses_nonsense(study: StudyBuilder, analyse) -> None:
    measured(study, {1: [1.0], 2: [1.02], 4: [1.03]})
    done = analyse("next", study.folder, "gpus=32")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  python -m harness -m gpus=8\n" in done.stdout
    (series,) = json.loads(analyse("next", study.folder, "gpus=32", "--json").stdout)["series"]
    assert series["candidates"][0]["command"] == "python -m harness -m gpus=8"
    assert series["marks"] == ["single run"]
    for settings, said in (
        (["gpus=8,16"], "give one target"),
        (["gpus=8", "epochs=1"], "'epochs=1' is no setting"),
    ):
        done = analyse("next", study.folder, *settings)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
