"""The losses of series of points, from logs with known parts, and which is called the largest."""

from __future__ import annotations

import random
from typing import Any

import pytest
from probed_studies import COST, levels, losses, of, rounds, steps, values
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.breakdown import (
    COMPUTE,
    DATA,
    IMBALANCE,
    SYNCHRONISATION,
    UNDIVIDED,
    UNEXPLAINED,
    lost_parts,
    parts_of_runs,
    run_parts,
    shares,
)
from analysis.measures.losses import largest_of
from analysis.measures.pop import efficiencies
from analysis.read.study import read_study
from analysis.stats.intervals import Interval
from analysis.stats.rounds import difference, of_runs
from harness.core.spec import STRONG


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_losses_add_up_to_the_step_minus_the_ideal_step(study: StudyBuilder, scaling: str) -> None:
    batch: dict[str, Any] = {} if scaling == "weak" else {"scaling": STRONG, "global_batch": 128, "batch_per_gpu": 32}
    one = {} if scaling == "weak" else {"scaling": STRONG}
    alone = rounds(stall=0.004, computing=(0.2,))
    study.add(spec_of(1, strategy="plain", **one), Logs(rounds=alone, block_seconds=steps(0.205)))
    shared = rounds(stall=0.006, exposed=0.02, computing=(0.07, 0.07, 0.07, 0.11))
    study.add(spec_of(4, **batch), Logs(rounds=shared, block_seconds=steps(0.137)))
    loss = of(losses(study), 4)
    work = 1.0 if scaling == "weak" else 0.25
    assert loss.ideal_seconds == pytest.approx(0.205 * work)
    expected = {
        DATA: 0.006 - 0.004 * work,
        SYNCHRONISATION: 0.02,
        IMBALANCE: 0.03,
        COMPUTE: 0.08 - 0.2 * work,
        UNEXPLAINED: 0.001 - 0.001 * work,
    }
    assert values(dict(loss.lost)) == pytest.approx(expected, abs=1e-12)
    assert sum(expected.values()) == pytest.approx(0.137 - 0.205 * work)
    # 100 % minus the shares is the efficiency in the table of points.
    assert 1 - sum(share.estimate for share in loss.shares.values()) == pytest.approx(loss.point.efficiency, rel=1e-12)
    assert loss.basis == "8 rounds of one run; base: 8 rounds of one run"


def test_series_without_the_framework_alone_are_each_relative_to_their_own_smallest(study: StudyBuilder) -> None:
    for variant in (1, 2):
        for gpus in (1, 2):
            exposed = 0.01 * variant * (gpus - 1)
            logs = Logs(rounds=rounds(exposed=exposed, computing=(0.1,) * gpus), block_seconds=steps(0.1 + exposed))
            study.add(spec_of(gpus, strategy="horovod", strategy_options={"variant": variant}), logs)
    found = [loss for loss in losses(study).points if loss.lost]
    assert [loss.lost[SYNCHRONISATION].estimate for loss in found] == pytest.approx([0.01, 0.02])
    for loss in found:
        assert 1 - sum(share.estimate for share in loss.shares.values()) == pytest.approx(loss.point.efficiency)


def test_the_interval_of_a_difference_joins_both() -> None:
    # Equal and symmetric: the root of the sum of squares, 3 and 4 to 5.
    assert difference(Interval(10, 7, 13), Interval(4, 0, 8)) == Interval(6, 1, 11)
    assert difference(Interval(10, 7, 13), Interval(4)) == Interval(6)
    assert of_runs([2.0]) == Interval(2.0)


def test_inseparable_communication_is_one_part_with_compute(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(rounds=rounds(computing=(0.1,)), block_seconds=steps(0.1)))
    probes = rounds(stall=0.01, exposed=0.03, computing=(0.1, 0.1), without=["no_sync"])
    study.add(spec_of(2, strategy="fsdp"), Logs(rounds=probes, block_seconds=steps(0.14)))
    loss = of(losses(study), 2, "fsdp")
    assert loss.parts is not None
    assert values(loss.parts) == pytest.approx({DATA: 0.01, UNDIVIDED: 0.13, UNEXPLAINED: 0.0}, abs=1e-12)
    assert values(dict(loss.lost)) == pytest.approx({DATA: 0.01, UNDIVIDED: 0.03, UNEXPLAINED: 0.0}, abs=1e-12)
    assert "no step without synchronisation" in loss.notes[0]
    known = {name for name, value in loss.efficiencies.items() if value is not None}
    assert known == {"data_efficiency"}
    assert loss.network.overlap is None


def test_ranks_that_do_not_wait_have_no_imbalance_and_no_load_balance(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(rounds=rounds(computing=(0.1,)), block_seconds=steps(0.1)))
    probes = rounds(exposed=0.01, computing=(0.1, 0.14))
    staleness = {"updates": 50, "mean": 1.0, "max": 2, "samples": 12_800, "lead": None}
    logs = Logs(rounds=probes, block_seconds=steps(0.15)[:4], staleness=staleness)
    study.add(spec_of(2, strategy="ps_async", strategy_options={"servers": 1}), logs)
    loss = of(losses(study), 2, "ps_async")
    assert values(dict(loss.lost)) == pytest.approx(
        {DATA: 0.0, SYNCHRONISATION: 0.01, COMPUTE: 0.04, UNEXPLAINED: 0.0}, abs=1e-12
    )
    assert loss.efficiencies["load_balance"] is None
    assert any(note.startswith("no imbalance") for note in loss.notes)


def test_logs_from_before_the_rounds_are_one_round_against_the_timed_steps(study: StudyBuilder) -> None:
    logs = Logs(cached_batch_seconds=0.09, no_sync_seconds=0.08, allreduce={1024: 0.02}, block_seconds=steps(0.1))
    study.add(spec_of(2), logs)
    loss = of(losses(study), 2)
    assert loss.parts is not None
    assert values(loss.parts) == pytest.approx({DATA: 0.01, SYNCHRONISATION: 0.01, IMBALANCE: 0.0, COMPUTE: 0.08})
    assert loss.parts.basis == "1 round of one run: too few for an interval"
    assert loss.parts.notes == ("no probe of the full step: data stall is relative to the timed steps",)
    (point,) = Seen(study).csv
    assert (float(point["data_stall_seconds"]), float(point["exposed_communication_seconds"])) == pytest.approx(
        (0.01, 0.01)
    )


def test_runs_without_probes_are_named_with_their_reason(study: StudyBuilder) -> None:
    skipped = {**COST, "rounds": 0, "skipped": "one round would take about 3 s, and the limit is 1 s"}
    long = study.add(spec_of(1), Logs(probes=skipped)).name
    bare = study.completed(2).name
    seen = Seen(study)
    assert f"not known of {long}: one round would take about 3 s" in words(seen.table)
    assert f"not known of {bare}: no probes in the logs" in words(seen.html)
    assert "waterfall.svg" not in seen.figures
    assert {row["compute_seconds"] for row in seen.breakdown} == {""}


def test_some_runs_without_probes_are_said_at_the_point(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(rounds=rounds(), block_seconds=steps(0.1)))
    study.add(spec_of(1, repeat=1), Logs(block_seconds=steps(0.1)))
    assert of(losses(study), 1).notes == ("1 of 2 runs have no probes",)
    assert parts_of_runs([], 1.0) is None


def test_why_a_probe_was_left_out_is_said_at_the_point(study: StudyBuilder) -> None:
    cost = {**COST, "skipped": "no_sync has to be compiled, which would take about 9 s"}
    probes = rounds(computing=(0.1, 0.1), without=["no_sync"])
    study.add(spec_of(2), Logs(rounds=probes, block_seconds=steps(0.1), probes=cost))
    assert of(losses(study), 2).notes[-1] == "probes: no_sync has to be compiled, which would take about 9 s"


def test_a_base_without_probes_leaves_the_loss_without_parts(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(block_seconds=steps(0.1)))
    study.add(spec_of(2), Logs(rounds=rounds(computing=(0.1, 0.1)), block_seconds=steps(0.1)))
    loss = of(losses(study), 2)
    assert (loss.lost, loss.basis) == ({}, "the base has no probes: nothing to compare the parts with")


def test_pop_efficiencies_are_the_ratios_that_they_are_defined_as(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(rounds=rounds(computing=(0.1,)), block_seconds=steps(0.1)))
    probes = rounds(stall=0.04, exposed=0.04, computing=(0.1, 0.12))
    study.add(spec_of(2), Logs(rounds=probes, block_seconds=steps(0.2)))
    found = of(losses(study), 2).efficiencies
    expected = {
        "load_balance": 0.11 / 0.12,
        "communication_efficiency": 0.12 / 0.16,
        "parallel_efficiency": 0.11 / 0.16,
        "data_efficiency": 0.16 / 0.2,
        "computation_scaling": 0.1 / 0.11,
        "global_efficiency": 0.1 / 0.2,
    }
    assert found == pytest.approx(expected)


def test_global_efficiency_is_that_of_the_report_where_all_is_explained() -> None:
    base = run_parts(levels(0.1), 0.1)
    parts = run_parts(levels(0.08), 0.08)
    assert parts is not None
    assert base is not None
    # Half of the work takes 80 ms instead of 50.
    relative, own = (efficiencies(p, base, work)["global_efficiency"] for p, work in ((parts, 0.5), (base, 1.0)))
    assert relative is not None
    assert own is not None
    assert relative / own == pytest.approx(0.05 / 0.08)
    lost = lost_parts(parts, base, 0.5)
    assert 1 - sum(share.estimate for share in shares(lost, 0.08).values()) == pytest.approx(0.05 / 0.08)


def test_largest_loss_is_stated_only_if_its_interval_excludes_0(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(rounds=rounds(computing=(0.09,)), block_seconds=steps(0.09)))
    clear = rounds(exposed=0.01, computing=(0.09, 0.09))
    study.add(spec_of(2), Logs(rounds=clear, block_seconds=steps(0.1)))
    # Exposed times around 10 ms, some of them 0.
    noisy = rounds(exposed=0.01, computing=(0.09, 0.09))
    for number in (0, 1, 2):
        noisy["cached_batch"][number] = noisy["full"][number] = [0.08, 0.08]
    study.add(spec_of(2, strategy="horovod"), Logs(rounds=noisy, block_seconds=steps(0.1)))
    table = words(Seen(study).table)
    basis = "95 % intervals from 8 rounds of one run; base: 8 rounds of one run"
    assert (
        "PyTorch DDP, resnet44 on cifar10 (weak scaling, 128 per GPU), on 2 GPUs relative to 1 GPU, plain: "
        f"The largest loss is exposed synchronisation, 10.0 % (10.0–10.0 %); {basis} (single run)." in table
    )
    assert table.count("The largest") == 1


def test_two_losses_that_may_both_be_the_largest_are_both_named(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(rounds=rounds(computing=(0.081,)), block_seconds=steps(0.081)))
    # 12 ms of synchronisation and 8 of imbalance, in the median of nine rounds; in one of them the other way round.
    shared = rounds(exposed=0.012, computing=(0.08, 0.096), n=9)
    shared["cached_batch"][4] = shared["full"][4] = [0.104, 0.104]
    shared["no_sync"][4] = [0.076, 0.1]
    study.add(spec_of(2), Logs(rounds=shared, block_seconds=steps(0.108)))
    loss = of(losses(study), 2)
    # At 95 %, one of nine values is left out at each end, and the intervals do not overlap; jointly, none is.
    assert loss.shares[SYNCHRONISATION].low > loss.shares[IMBALANCE].high  # type: ignore[operator]
    said = (
        "Which loss is the largest cannot be told; largest estimates: exposed synchronisation, 11.1 % (11.1–11.1 %); "
        "imbalance, 7.4 % (7.4–7.4 %); slower compute, 6.5 % (6.5–6.5 %); 95 % intervals from 9 rounds of one run"
    )
    assert said in words(Seen(study).table)


def test_of_equal_losses_one_is_called_the_largest_in_at_most_a_twentieth_of_studies() -> None:
    random_numbers = random.Random(3)
    told = 0
    for _ in range(400):
        lost = [[0.05 + random_numbers.gauss(0, 0.01) for _ in range(5)] for _ in range(5)]
        told += largest_of({f"{i}": of_runs(values, 1 - 0.05 / 5) for i, values in enumerate(lost)}).told
    assert told <= 20


def test_unprobed_loss_is_unexplained_and_oversubscribed_points_are_marked(
    study: StudyBuilder,
) -> None:
    one = Logs(rounds=rounds(computing=(0.09,)), block_seconds=steps(0.09))
    study.add(spec_of(1, strategy="plain"), one)
    two = Logs(rounds=rounds(computing=(0.09, 0.09)), block_seconds=steps(0.12))
    study.add(spec_of(2), two, result={"oversubscribed": "2 ranks share 1 core"})
    seen = Seen(study)
    assert "The largest part of the loss is not explained by the probes, 25.0 %" in words(seen.table)
    assert "This is not a scaling result: ranks shared cores or GPUs." in words(seen.html)
    (row,) = [row for row in seen.breakdown if row["gpus"] == "2"]
    assert row["oversubscribed"] == "2 ranks share 1 core"
    assert "oversubscribed" in seen.words_of("waterfall")


def test_table_report_figure_and_csv_say_the_same(study: StudyBuilder) -> None:
    alone = rounds(computing=(0.1,))
    study.add(spec_of(1, strategy="plain"), Logs(rounds=alone, block_seconds=steps(0.1), probes=COST))
    shared = rounds(stall=0.005, exposed=0.03, computing=(0.1, 0.13))
    shared["allreduce"] = [[0.05, 0.04]] * 8
    study.add(spec_of(2), Logs(rounds=shared, block_seconds=steps(0.17), probes=COST))
    seen = Seen(study)
    (point,), (row,) = ([r for r in rows if r["gpus"] == "2"] for rows in (seen.csv, seen.breakdown))
    for name in ("data_stall_seconds", "exposed_communication_seconds", "efficiency", "step_seconds"):
        assert point[name] == row[name]
    share = f"{100 * float(row['efficiency_lost_to_exposed_communication']):.1f} % (17.6–17.6 %)"
    assert share == "17.6 % (17.6–17.6 %)"  # 30 of 170 ms
    svg = seen.words_of("waterfall")
    assert all(share in words(text) for text in (seen.table, seen.html, svg))
    assert "8 rounds" in seen.html
    assert "6.1 % of the time before" in seen.html
    assert (row["allreduce_bytes"], row["probe_rounds"]) == ("2634344", "8")
    assert "2.51 MiB" in seen.html
    assert "50.0 ms" in seen.html
    # 1 - 30 / 50, by the slowest rank's message.
    assert float(row["overlap"]) == pytest.approx(0.4)
    (run,) = [run for run in read_study(study.folder).runs if run["gpus"] == 2]
    assert run["probe_share"] == 0.0612
