"""The breakdown of a step from logs with known parts: the parts are found, add up, and have correct intervals."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from probed_studies import COST, levels, losses, of, rounds, steps, values
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.breakdown import (
    BUCKETING,
    COMPUTE,
    DATA,
    IMBALANCE,
    SYNCHRONISATION,
    UNEXPLAINED,
    own_parts,
    point_parts,
    run_parts,
)
from analysis.measures.pop import efficiencies
from analysis.measures.traced import traced_exposed, traced_notes
from analysis.report.losses import breakdown_row, traced_text
from analysis.stats.intervals import Interval
from analysis.stats.rounds import of_rounds


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
    runs = [run_parts(levels(seconds), seconds) for seconds in (0.1, 0.2)]
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
    without = {"profiler": "torch.profiler", "reason": "its parts are not known: it is torn", "file": "trace.json.gz"}
    assert traced_notes([without]) == ["trace: its parts are not known: it is torn"]
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
