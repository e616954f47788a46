"""The breakdown of a step from logs with known parts: the parts are found, add up, and have correct intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.breakdown import (
    BUCKETING,
    COMPUTE,
    DATA,
    IMBALANCE,
    SYNCHRONISATION,
    UNDIVIDED,
    UNEXPLAINED,
    Parts,
    lost_parts,
    own_parts,
    parts_of_runs,
    point_parts,
    run_parts,
    shares,
)
from analysis.measures.losses import Loss, Losses, largest_of, losses_of
from analysis.measures.pop import efficiencies
from analysis.measures.speedup import points_of
from analysis.measures.traced import traced_exposed, traced_notes
from analysis.read.study import read_study
from analysis.report.losses import breakdown_row, traced_text
from analysis.stats.intervals import Interval
from analysis.stats.rounds import difference, of_rounds, of_runs
from harness.core.spec import STRONG

COST = {"rounds": 8, "seconds": 3.0, "share": 0.0612, "limit": 0.1, "skipped": None}


def rounds(
    stall: float = 0.0,
    exposed: float = 0.0,
    computing: Sequence[float] = (0.1,),
    n: int = 8,
    drift: float = 0.0,
    without: Sequence[str] = (),
) -> dict[str, list[list[float]]]:
    """Make the probes of ranks that compute for this many seconds each. drift: additional seconds per round."""
    found: dict[str, list[list[float]]] = {name: [] for name in ("full", "cached_batch", "no_sync")}
    for number in range(n):
        own = [seconds + number * drift for seconds in computing]
        found["no_sync"].append(own)
        found["cached_batch"].append([max(own) + exposed] * len(own))
        found["full"].append([max(own) + exposed + stall] * len(own))
    return {name: values for name, values in found.items() if name not in without}


def steps(seconds: float) -> list[float]:
    """Return the durations of eight timed blocks of ten steps."""
    return [10 * seconds] * 8


def losses(study: StudyBuilder) -> Losses:
    runs = read_study(study.folder).runs
    return losses_of(points_of(runs))


def of(found: Losses, gpus: int, strategy: str = "allreduce") -> Loss:
    (loss,) = [loss for loss in found.points if (loss.point.gpus, loss.point.strategy) == (gpus, strategy)]
    return loss


def values(parts: Parts | dict[str, Interval]) -> dict[str, float]:
    return {name: part.estimate for name, part in (parts.seconds if isinstance(parts, Parts) else parts).items()}


def test_the_parts_of_a_run_are_those_that_its_ranks_took_and_add_up_to_its_step(study: StudyBuilder) -> None:
    # One rank computes for 100 ms, the other for 120: 110 on average. Then 30 ms of messages and 5 of waiting for data;
    # the timed steps took 2 ms more than the probes' full step of 155.
    probes = rounds(stall=0.005, exposed=0.03, computing=(0.1, 0.12))
    study.add(spec_of(2), Logs(rounds=probes, block_seconds=steps(0.157), probes=COST))
    loss = of(losses(study), 2)
    assert loss.parts is not None
    expected = {DATA: 0.005, SYNCHRONISATION: 0.03, IMBALANCE: 0.01, COMPUTE: 0.11, UNEXPLAINED: 0.002}
    assert values(loss.parts) == pytest.approx(expected, abs=1e-12)
    assert list(loss.parts.seconds) == list(expected)
    assert sum(values(loss.parts).values()) == pytest.approx(0.157, rel=1e-12)
    assert (loss.parts.basis, loss.probe_rounds, loss.probe_share) == ("8 rounds of one run", 8, 0.0612)
    # It has no baseline but itself.
    assert (loss.lost, loss.shares, loss.ideal_seconds) == ({}, {}, None)


def test_a_machine_that_drifts_moves_no_part_but_compute(study: StudyBuilder) -> None:
    probes = rounds(stall=0.005, exposed=0.03, computing=(0.1, 0.12), drift=0.01)
    study.add(spec_of(2), Logs(rounds=probes, block_seconds=steps(0.19)))
    parts = of(losses(study), 2).parts
    assert parts is not None
    for name, seconds in {DATA: 0.005, SYNCHRONISATION: 0.03, IMBALANCE: 0.01}.items():
        assert parts.seconds[name][:3] == pytest.approx((seconds,) * 3, abs=1e-12)
    # Eight rounds from 110 to 180 ms: the second to seventh cover the median with 93 %, the full range with 99 %.
    assert parts.seconds[COMPUTE][:3] == pytest.approx((0.145, 0.11, 0.18))
    assert sum(values(parts).values()) == pytest.approx(0.19)


def test_one_slow_round_moves_no_median() -> None:
    probes = {"full": {"slowest": [0.1] * 6 + [9.0]}, "cached_batch": {"slowest": [0.09] * 7}}
    parts = run_parts(probes, 0.1)
    assert parts is not None
    assert parts.seconds[DATA][:3] == pytest.approx((0.01, 0.01, 8.91))


@pytest.mark.parametrize(("n", "below"), [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (20, 5)])
def test_the_interval_of_a_median_lies_between_order_statistics(n: int, below: int) -> None:
    # Le Boudec 2010, appendix A, table of intervals for the median at 95 %: of 20 values the 6th and the 15th.
    found = of_rounds(list(range(n)))
    assert (found.low, found.high) == (below, n - 1 - below)


def test_fewer_than_six_rounds_have_no_interval_and_say_so(study: StudyBuilder) -> None:
    study.add(spec_of(1), Logs(rounds=rounds(n=5), block_seconds=steps(0.1)))
    parts = of(losses(study), 1).parts
    assert parts is not None
    assert parts.basis == "5 rounds of one run: too few for an interval"
    assert all(part.low is None and part.high is None for part in parts.seconds.values())


def test_of_several_runs_the_interval_comes_from_the_runs(study: StudyBuilder) -> None:
    for repeat, exposed in enumerate((0.01, 0.02, 0.03)):
        probes = rounds(exposed=exposed, computing=(0.1, 0.1))
        study.add(spec_of(2, repeat=repeat), Logs(rounds=probes, block_seconds=steps(0.1 + exposed)))
    parts = of(losses(study), 2).parts
    assert parts is not None
    # t(0.975, 2) = 4.3027, and a standard deviation of 10 ms over the root of 3.
    half = 4.3027 * 0.01 / 3**0.5
    assert parts.seconds[SYNCHRONISATION][:3] == pytest.approx((0.02, 0.02 - half, 0.02 + half), rel=1e-4)
    assert parts.basis == "3 runs"
    assert sum(values(parts).values()) == pytest.approx(parts.step_seconds, rel=1e-12)


def test_runs_of_unequal_length_still_add_up_to_the_step_of_the_point() -> None:
    # A point's step time weights its runs by steps, whereas parts count each run once. The rest is unexplained.
    runs = [run_parts(_levels(seconds), seconds) for seconds in (0.1, 0.2)]
    parts = point_parts([run for run in runs if run], 0.12)
    assert sum(values(parts).values()) == pytest.approx(0.12, rel=1e-12)
    assert parts.seconds[UNEXPLAINED].estimate == pytest.approx(-0.03)


def test_with_noise_the_parts_add_up_to_the_full_step_within_its_interval() -> None:
    """Medians do not add up like means. Of 400 such runs each, the sum of four parts missed the full step's interval in
    none with 6 or 10 rounds, and in 1 with 20."""
    random_numbers = random.Random(7)

    def about(seconds: float) -> float:
        return seconds * (1 + random_numbers.gauss(0, 0.01))

    runs, within, nothing = 100, 0, 0
    for _ in range(runs):
        probes: dict[str, dict[str, list[float]]] = {
            name: {"slowest": [], "mean": []} for name in ("full", "cached_batch", "no_sync")
        }
        for _ in range(10):
            computing = [about(0.09) for _ in range(4)]
            probes["full"]["slowest"].append(about(0.11))
            probes["cached_batch"]["slowest"].append(about(0.105))
            probes["no_sync"]["slowest"].append(max(computing))
            probes["no_sync"]["mean"].append(sum(computing) / 4)
        blocks = [about(0.11) for _ in range(20)]
        parts = run_parts(probes, sum(blocks) / 20, blocks)
        assert parts is not None
        assert sum(values(parts).values()) == pytest.approx(parts.step_seconds, rel=1e-12)
        full = of_rounds(probes["full"]["slowest"])
        four = sum(seconds for name, seconds in values(parts).items() if name != UNEXPLAINED)
        within += full.low <= four <= full.high  # type: ignore[operator]
        nothing += not parts.seconds[UNEXPLAINED].excludes(0)
    assert within >= 97
    assert nothing >= 90


def test_unexplained_holds_where_neighbouring_blocks_are_alike() -> None:
    """100 blocks whose step time wanders (correlation 0.7 between neighbours) about that of the full step. Were they
    taken as independent, 6 of 10 intervals would hold it."""
    random_numbers = random.Random(5)
    probes = {name: {"slowest": [0.1] * 6} for name in ("full", "cached_batch")}
    held = 0
    for _ in range(200):
        blocks, off = [], 0.0
        for _ in range(120):
            off = 0.7 * off + random_numbers.gauss(0, 0.003)
            blocks.append(0.1 + off)
        parts = run_parts(probes, sum(blocks[20:]) / 100, blocks[20:])
        assert parts is not None
        held += not parts.seconds[UNEXPLAINED].excludes(0)
    assert held >= 170


@pytest.mark.parametrize("waits", [[0.01, 0.03], []])
def test_parts_of_a_training_of_ones_own_add_up_with_and_without_waiting(waits: list[float]) -> None:
    probes = {
        "cached_batch": {"slowest": [0.09] * 6, "mean": [0.09] * 6},
        "no_sync": {"slowest": [0.06] * 6, "mean": [0.05] * 6},
    }
    parts = own_parts(probes, 0.12, [0.11, 0.13], waits)
    assert parts is not None
    expected = {SYNCHRONISATION: 0.03, IMBALANCE: 0.01, COMPUTE: 0.05, UNEXPLAINED: 0.01 if waits else 0.03}
    assert {name: part.estimate for name, part in parts.seconds.items()} == pytest.approx(
        {**({DATA: 0.02} if waits else {}), **expected}
    )
    assert efficiencies(parts, parts, 1.0)["data_efficiency"] == (pytest.approx(0.09 / 0.11) if waits else None)


def test_a_trace_is_said_beside_the_parts_and_alone() -> None:
    def trace(idle: float) -> dict[str, Any]:
        parts = {"window": 0.09 + idle, "compute": 0.06, "exposed_communication": 0.03, "copies": 0.0, "idle": idle}
        return {"profiler": "torch.profiler", "steps": 3, "reason": None, "parts": parts}

    [said] = traced_notes([trace(0.01), trace(0.03)])
    assert said == (
        "trace of 3 steps on 2 ranks: computation 60.0 ms, communication not covered by it 30.0 ms, idle 20.0 ms "
        "(10.0 ms to 30.0 ms), of 110 ms per step"
    )
    alone = own_parts({}, 0.11, [0.11, 0.11], [], "FSDP", [said])
    assert alone is not None
    assert alone.notes[1:] == ("compute and communication are one part: FSDP", said)
    assert traced_notes([{"profiler": "torch.profiler", "reason": "a step takes 9 s"}]) == [
        "no trace: a step takes 9 s"
    ]
    assert traced_notes([]) == []
    assert traced_exposed([trace(0.01), {"parts": None}]) == [0.03]


def test_the_communication_of_a_trace_stands_beside_that_of_the_probe(study: StudyBuilder) -> None:
    study.add(spec_of(2), Logs(rounds=rounds(exposed=0.03, computing=(0.1, 0.1)), block_seconds=steps(0.13)))
    loss = of(losses(study), 2)
    assert traced_text(loss, SYNCHRONISATION) == ""
    seen = replace(loss, traced=Interval(0.02, 0.01, 0.03))
    assert traced_text(seen, SYNCHRONISATION).strip() == "trace: 20.0 ms (10.0–30.0 ms) exposed communication"
    assert traced_text(seen, COMPUTE) == ""
    assert breakdown_row(seen)["traced_exposed_communication_seconds"] == 0.02


def with_one_rank(bucketing: float, exposed: float, computing: float) -> dict[str, list[list[float]]]:
    """Make the probes of two ranks whose buckets and hooks take this long without peers."""
    probes = rounds(exposed=bucketing + exposed, computing=(computing,) * 2)
    return {**probes, "one_rank": [[computing + bucketing] * 2] * 8}


def test_what_buckets_take_without_peers_is_not_exposed_synchronisation(study: StudyBuilder) -> None:
    study.add(spec_of(1, strategy="plain"), Logs(rounds=rounds(computing=(0.1,)), block_seconds=steps(0.1)))
    logs = Logs(rounds=with_one_rank(0.004, 0.01, 0.1), block_seconds=steps(0.114))
    study.add(spec_of(2), logs)
    loss = of(losses(study), 2)
    assert loss.parts is not None
    expected = {DATA: 0.0, SYNCHRONISATION: 0.01, BUCKETING: 0.004, IMBALANCE: 0.0, COMPUTE: 0.1, UNEXPLAINED: 0.0}
    assert values(loss.parts) == pytest.approx(expected, abs=1e-12)
    assert list(loss.parts.seconds) == list(expected)
    # The framework alone has no buckets.
    assert loss.lost[BUCKETING][:3] == pytest.approx((0.004,) * 3)
    assert loss.lost[SYNCHRONISATION].estimate == pytest.approx(0.01)
    assert loss.efficiencies["communication_efficiency"] == pytest.approx(0.1 / 0.114)
    assert "exposed synchronisation, 8.8 %" in words(Seen(study).table)
    assert "Gradient bucketing" in words(Seen(study).html)


def test_one_rank_probes_on_one_side_only_are_part_of_exposed_synchronisation(study: StudyBuilder) -> None:
    old = rounds(exposed=0.005, computing=(0.1,))
    study.add(spec_of(1, strategy="allreduce"), Logs(rounds=old, block_seconds=steps(0.105)))
    study.add(spec_of(2), Logs(rounds=with_one_rank(0.004, 0.01, 0.1), block_seconds=steps(0.114)))
    lost = values(dict(of(losses(study), 2).lost))
    assert BUCKETING not in lost
    assert lost[SYNCHRONISATION] == pytest.approx(0.009)


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
    base = run_parts(_levels(0.1), 0.1)
    parts = run_parts(_levels(0.08), 0.08)
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


def _levels(seconds: float) -> dict[str, dict[str, list[float]]]:
    """Make the probes of a step with 80 % compute, 10 % messages and 10 % waiting for data."""
    return {
        "full": {"slowest": [seconds] * 6},
        "cached_batch": {"slowest": [0.9 * seconds] * 6},
        "no_sync": {"slowest": [0.8 * seconds] * 6, "mean": [0.8 * seconds] * 6},
    }
