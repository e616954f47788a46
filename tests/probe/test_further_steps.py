"""Where a step's time goes: further steps of the user's script with and without synchronisation."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from statistics import mean, median
from typing import Any

import hosts
import pytest
from ranks import PROBE, Rank, run, write_settings

from analysis.measures.breakdown import COMPUTE, DATA, IMBALANCE, SYNCHRONISATION, Parts, own_parts
from analysis.read.columns.protocol import probe_columns, protocol_columns
from analysis.read.log.rank import RankLog
from analysis.read.row import Run

pytestmark = pytest.mark.torch
# A trace of 2 steps, and 6 rounds with blocks of 3 as far as the time so far allows: three times as long.
MBIT = 200
FURTHER = {"trace": 2, "steps": 3, "limit": 3.0, "rounds": 6}


def ranks_of(folder: Path, python: Path, *command: str, world_size: int = 2) -> list[Rank]:
    return run(folder, python, *command, script="known_costs.py", world_size=world_size, further=FURTHER)


def parts_of(ranks: list[Rank]) -> Parts:
    """What the analysis makes of the ranks' logs."""
    logs = {number: RankLog.of(rank.events) for number, rank in enumerate(ranks)}
    row: dict[str, Any] = {"run_id": "", "status": "completed", **probe_columns(logs), **protocol_columns(logs)}
    found = Run.of(row)
    steps, waits = (
        [
            max(block[key] for block in blocks) / blocks[0]["n"]
            for blocks in zip(*(r.measured for r in ranks), strict=True)
        ]
        for key in ("seconds", "data_seconds")
    )
    parts = own_parts(found.probes, sum(steps) / len(steps), steps, waits, row["probes_skipped"])
    assert parts is not None
    return parts


def test_synchronisation_is_told_from_compute_and_imbalance(torch_python: Path, tmp_path: Path) -> None:
    costs = ("--compute", "0.04", "--straggler", "0.04", "--data", "0.03", "--message", "0.1")
    ranks = ranks_of(tmp_path, torch_python, *costs)
    for rank in ranks:
        assert rank.one("probes")["skipped"] is None
        assert rank.one("probes")["rounds"] > 0
        assert (rank.one("end")["steps"], rank.one("protocol")["measured_steps"]) == (25, 20)
        assert [event["ev"] for event in rank.events][-2:] == ["probes", "end"]
        trace = RankLog.of(rank.events).trace
        assert trace is not None
        assert (trace["steps"], trace["reason"]) == (2, None)
        traced = trace["parts"]
        parts = (traced[name] for name in ("compute", "exposed_communication", "copies", "data_wait", "idle"))
        assert sum(parts) == pytest.approx(traced["window"])
        assert traced["window"] > 0.17  # of each rank: compute, data and message
        assert traced["data_wait"] >= 0.03
    assert [file.name for file in tmp_path.glob("trace.*")] == ["trace.rank0.json.gz"]
    # Every other round begins without synchronisation.
    assert [event["probe"] for event in ranks[0].of("probe")][:4] == [
        "cached_batch",
        "no_sync",
        "no_sync",
        "cached_batch",
    ]
    parts = parts_of(ranks)
    assert parts.divided
    # What was set is the least that each can take, and the largest by far; how exact it is: below, on a link.
    seconds = {name: part.estimate for name, part in parts.seconds.items()}
    assert seconds[DATA] >= 0.03
    assert seconds[COMPUTE] >= 0.06
    assert seconds[SYNCHRONISATION] > seconds[COMPUTE] > seconds[IMBALANCE] > 0.01


@pytest.mark.parametrize(
    ("what", "world_size", "reason"),
    [
        ("profiler", 1, "the script runs a profiler of its own"),
        ("raise", 1, "the further steps ended early: ValueError: too many steps"),
        ("checkpoint", 1, "the further steps ended early: the script saves a checkpoint"),
        pytest.param("no_ddp", 2, "no DistributedDataParallel was seen", marks=pytest.mark.whole),
        pytest.param("no_sync", 2, "the script itself calls no_sync", marks=pytest.mark.whole),
        pytest.param("exit", 2, "the further steps ended early: SystemExit: 3", marks=pytest.mark.whole),
        pytest.param("raise", 2, "the further steps ended early", marks=pytest.mark.whole),
    ],
)
def test_where_there_is_no_number_there_is_the_reason(
    torch_python: Path, tmp_path: Path, what: str, world_size: int, reason: str
) -> None:
    costs = ("--with", what, "--compute", "0.01")
    for rank in ranks_of(tmp_path, torch_python, *costs, world_size=world_size):
        assert rank.one("probes")["skipped"].startswith(reason)
        assert rank.one("trace")["reason"] == (reason + ", which would be disturbed" if what == "profiler" else None)
        assert rank.one("end")["steps"] == 25
    assert not list(tmp_path.glob("saved.*"))


def test_one_rank_needs_no_ddp_to_be_the_baseline(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = ranks_of(tmp_path, torch_python, "--with", "no_ddp", "--samples", "64", world_size=1)
    assert rank.one("probes")["rounds"] == 6
    # The batches go on where the timed steps left off, although an epoch has 8.
    assert parts_of([rank]).divided


@pytest.mark.quiet
@pytest.mark.timeout(300)
def test_parts_are_within_a_twentieth_of_a_step_on_a_shaped_link(torch_python: Path, tmp_path: Path) -> None:
    """Two hosts in network namespaces. The script times its own data, traced compute and messages. No message is
    faster than the link's bandwidth allows for the bytes that the kernel counted."""
    if why := hosts.why_not():
        pytest.skip(why)
    for attempt in range(2):  # another program may delay a step; an error of the probe would recur
        folder = tmp_path / str(attempt)
        folder.mkdir()
        if not (off := wrong_on_link(folder, torch_python)):
            return
    assert not off


def wrong_on_link(folder: Path, python: Path) -> list[str]:
    """Return the parts that are wrong, by the further steps and by the trace."""
    compute, straggler, data = 0.04, 0.02, 0.02
    costs = ["--compute", str(compute), "--straggler", str(straggler), "--data", str(data), "--rows", "4096"]
    further = {"trace": 4, "steps": 3, "limit": 10.0, "rounds": 6}
    with hosts.hosts(2) as prefixes:
        for prefix in prefixes:
            tbf = ("root", "tbf", "rate", f"{MBIT}mbit", *hosts.SHAPED.split())
            subprocess.run([*prefix, "tc", "qdisc", "replace", "dev", hosts.INTERFACE, *tbf], check=True)
        ranks = run(
            folder,
            python,
            *costs,
            *("--link", hosts.INTERFACE),
            script="known_costs.py",
            world_size=2,
            prefixes=prefixes,
            variables={"MASTER_ADDR": hosts.address(0), "GLOO_SOCKET_IFNAME": hosts.INTERFACE},
            further=further,
        )
    steps = [rank.times["steps"] for rank in ranks if rank.times]
    blocks = [slice(block["step"], block["step"] + block["n"]) for block in ranks[0].measured]
    waits = [max(mean(step["data"] for step in rank[block]) for rank in steps) for block in blocks]
    # The first traced step, and the first of each block of a round, is not counted. The last rank waits for no other.
    traced = [[step for step in rank if step["traced"]][1:] for rank in steps]
    assert [len(rank) for rank in traced] == [further["trace"]] * 2
    block = 1 + further["steps"]
    sent = [step["message"] for step in steps[-1] if step["sent"]][-block * further["rounds"] :]
    message = median(mean(sent[first + 1 : first + block]) for first in range(0, len(sent), block))
    bits = 8 * (max(rank.times["bytes"] for rank in ranks if rank.times) - hosts.BURST_BYTES)
    assert min(message, *(mean(step["message"] for step in rank) for rank in traced)) > bits / (MBIT * 1e6) > 0.03
    twentieth = (compute + straggler + data + message) / 20
    found = {name: part.estimate for name, part in parts_of(ranks).seconds.items()}
    known = {DATA: mean(waits), SYNCHRONISATION: message, IMBALANCE: straggler / 2, COMPUTE: compute + straggler / 2}
    off = [
        text(name, found[name], seconds) for name, seconds in known.items() if abs(found[name] - seconds) > twentieth
    ]
    for number, rank in enumerate(ranks):
        parts = rank.one("trace")["parts"]
        known = {
            "compute": mean(step["compute"] for step in traced[number]),
            "exposed_communication": mean(step["message"] for step in traced[number]),
            "data_wait": mean(step["data"] for step in traced[number]),
            "idle": 0.0,
        }
        off += [
            f"rank {number}, trace: {text(name, parts[name], seconds)}"
            for name, seconds in known.items()
            if abs(parts[name] - seconds) > twentieth
        ]
    return off


def text(name: str, found: float, known: float) -> str:
    return f"{name} {1000 * found:.1f} ms instead of {1000 * known:.1f} ms"


def test_training_that_is_not_to_be_stopped_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROBE))
    settings = importlib.import_module("_scaling_probe.settings")
    for stop in (True, False):
        path = write_settings(tmp_path, 0, 1, stop=stop, further=FURTHER)
        assert (settings.read(str(path)).further is not None) == stop
