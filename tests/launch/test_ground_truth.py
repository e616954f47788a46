"""The analysis recovers the given costs of runs with framework=emulated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import hosts
import pytest
from emulated_runs import (
    Setting,
    Turn,
    Wrong,
    analysed,
    assert_right,
    finished,
    is_disturbed,
    needs_priority_where_busy,
    prepared,
    started,
    stretch,
    turns_of,
    wrong,
)
from studies import logged

from analysis.measures.breakdown import UNEXPLAINED

pytestmark = [pytest.mark.torch, pytest.mark.quiet]

MOST_HELD_UP = 2


def settings_of(ranks: int) -> list[Setting]:
    if ranks == 1:
        return [
            Setting(1, compute_ms=compute, stall_ms=stall) for compute in (20.0, 35.0) for stall in (0.0, 4.0, 10.0)
        ]
    last = ranks - 1
    slow = {"message_mb": 1.0, "bandwidth_mb": 150.0}
    return [
        Setting(ranks, **slow, overlap=False),
        Setting(ranks, **slow),  # three of four buckets behind backward
        Setting(ranks, compute_ms=30.0, **slow, stall_ms=6.0),
        # Few buckets, since gloo's own time for each is not among the given costs.
        Setting(ranks, latency_ms=4.0, overlap=False, buckets=2),
        Setting(ranks, latency_ms=4.0, backward_fraction=0.6),  # more than backward hides
        Setting(ranks, compute_ms=30.0, straggler_ms=8.0, straggler_rank=last, latency_ms=1.0),
        Setting(ranks, compute_ms=15.0, straggler_ms=15.0, stall_ms=5.0, **slow, overlap=False),
        Setting(ranks, compute_ms=35.0, backward_fraction=0.8, message_mb=2.0, bandwidth_mb=80.0),
        Setting(ranks, stall_ms=8.0, straggler_ms=4.0, straggler_rank=last, latency_ms=1.0, **slow, overlap=False),
        Setting(ranks, compute_ms=25.0, stall_ms=2.0, straggler_ms=10.0, backward_fraction=0.3, latency_ms=0.5, **slow),
    ]


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("sizes", "n", "most_held_up"),
    [
        pytest.param((1, 3), 16, 1, id="selection"),
        pytest.param((1, 2, 3, 4), 36, MOST_HELD_UP, id="whole", marks=pytest.mark.whole),
    ],
)
def test_breakdown_recovers_the_given_costs(
    torch_python: Path, tmp_path: Path, sizes: Sequence[int], n: int, most_held_up: int
) -> None:
    """Settings judged only against the given costs, not by the worker's own measurements."""
    needs_priority_where_busy()
    factors = {ranks: stretch(tmp_path / f"carrier-{ranks}", ranks) if ranks > 2 else 1.0 for ranks in sizes}
    settings = [setting.stretched(factors[ranks]) for ranks in sizes for setting in settings_of(ranks)]
    assert len(settings) == n
    assert_right(measured_wrongly, tmp_path, settings, most_held_up)


def measured_wrongly(folder: Path, settings: Sequence[Setting]) -> dict[Setting, Wrong]:
    """Measure the settings; return the wrong parts of each setting with a wrong breakdown."""
    folders = prepared(folder, settings)
    turns: dict[int, list[list[Turn]]] = defaultdict(list)
    for setting, run_dir in zip(settings, folders, strict=True):
        turns[setting.ranks].append(turns_of(run_dir, setting.ranks))
    # Four processes, reused because importing torch takes longer than a run: first all, then 3 and 1, then 2 and 2.
    processes: list[list[Turn]] = [[], [], [], []]
    for run in (*turns[4], *turns[3]):
        for process, turn in zip(processes, run, strict=False):
            process.append(turn)
    processes[3] += [turn for (turn,) in turns[1]]
    for number, (one, other) in enumerate(turns[2]):
        first, second = processes[:2] if number % 2 else processes[2:]
        first.append(one)
        second.append(other)
    with started([process for process in processes if process]) as ranks:
        finished(ranks, 240)
    off: dict[Setting, Wrong] = {}
    for setting, run_dir in zip(settings, folders, strict=True):
        parts = analysed(run_dir)
        assert set(parts.seconds) == {*setting.expected, UNEXPLAINED}
        [start] = logged(run_dir, "start")
        assert 0 <= start["waiting"]["overshoot_seconds"] < 0.01
        if problems := list(wrong(setting, setting.expected, parts)):
            off[setting] = Wrong("\n".join(problems), is_disturbed(run_dir))
    return off


# (Mbit/s of each host's link, other costs), without emulated waiting for the link. Few buckets and long steps, since
# gloo's own time per message is not among the given costs: 0.2 to 0.8 ms on a machine with two cores.
ONE = {"bandwidth_mb": None, "message_mb": 1.0, "buckets": 1, "compute_ms": 40.0, "overlap": False}
TWO = {"bandwidth_mb": None, "message_mb": 1.0, "buckets": 2, "compute_ms": 60.0}
Shaped = tuple[int, Setting]
SHAPED: list[Shaped] = [
    (200, Setting(2, **ONE)),
    (200, Setting(2, **TWO, stall_ms=8.0)),
    (400, Setting(2, **ONE, straggler_ms=20.0, straggler_rank=1)),
    (200, Setting(3, **ONE)),
    (300, Setting(3, **TWO, backward_fraction=0.8)),
    (300, Setting(3, **ONE, stall_ms=10.0, straggler_ms=12.0)),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("shaped", "most_held_up"),
    [
        pytest.param(SHAPED[1::2], 1, id="selection"),
        pytest.param(SHAPED, MOST_HELD_UP, id="whole", marks=pytest.mark.whole),
    ],
)
def test_breakdown_recovers_the_cost_of_a_real_link(
    torch_python: Path, tmp_path: Path, shaped: Sequence[Shaped], most_held_up: int
) -> None:
    """Hosts in network namespaces with links shaped by the kernel. The bandwidth is given; the kernel counts the bytes
    that the allreduce sends."""
    if why := hosts.why_not():
        pytest.skip(why)
    assert_right(over_links, tmp_path, shaped, most_held_up)


def over_links(folder: Path, settings: Sequence[Shaped]) -> dict[Shaped, Wrong]:
    """Measure the settings one after another; return the wrong parts of each setting with a wrong breakdown."""
    folders = prepared(folder, [setting for _, setting in settings])
    processes: list[list[Turn]] = [[] for _ in range(max(setting.ranks for _, setting in settings))]
    for (mbit, setting), run_dir in zip(settings, folders, strict=True):
        for process, turn in zip(processes, turns_of(run_dir, setting.ranks, mbit), strict=False):
            process.append(turn)
    with (
        hosts.hosts(len(processes)) as prefixes,
        started(processes, hosts.address(0), hosts.INTERFACE, prefixes) as ranks_of_all,
    ):
        finished(ranks_of_all, 240)
    off: dict[Shaped, Wrong] = {}
    for (mbit, setting), run_dir in zip(settings, folders, strict=True):
        sent = [int((run_dir / "attempt-1" / f"sent.rank{rank}").read_text()) for rank in range(setting.ranks)]
        bucket_bytes = max(sent) / setting.messages / setting.buckets
        bucket_ms, burst_ms = (1000 * 8 * number / (mbit * 1e6) for number in (bucket_bytes, hosts.BURST_BYTES))
        expected = setting.expected_with(bucket_ms, burst_ms)
        if problems := list(wrong(setting, expected, analysed(run_dir))):
            off[mbit, setting] = Wrong("\n".join(problems), is_disturbed(run_dir))
    return off
