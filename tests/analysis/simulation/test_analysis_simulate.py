"""`python -m analysis simulate`: from a study's measurements to unmeasured sizes."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from study_builder import Logs, StudyBuilder, spec_of

from analysis.scaling.communication import expected_maximum
from harness.core.spec import Placement

# Bytes of the gradients in the logs, and seconds of their allreduce on 8 GPUs: a bus bandwidth of 175 MB/s.
GRADIENTS = 10_000_000
ALLREDUCE = 0.1
ROUNDS, STEPS = 20, 5  # of the probes; steps as in Logs.rounds
OWN = 0.01  # relative standard deviation of a GPU's own step


def rounds_of(ranks: int, drift: float = 0.0) -> list[list[float]]:
    """Return seconds per step of 0.1 s on average: with noise of their own, and drift that the ranks share."""
    rng = np.random.default_rng(1)
    own = 1 + OWN / math.sqrt(STEPS) * rng.standard_normal((ROUNDS, ranks))
    common = 1 + drift * np.sin(np.arange(ROUNDS) * 2 * math.pi / ROUNDS)
    return list((0.1 * common[:, None] * own).tolist())


def logs_of(ranks: int, drift: float = 0.0, block_seconds: float = 2.0) -> Logs:
    """Logs of steps of 0.2 s: half of it the allreduce."""
    return Logs(
        block_seconds=[block_seconds] * 4,
        rounds={"full": [0.2] * ROUNDS, "cached_batch": [0.2] * ROUNDS, "no_sync": rounds_of(ranks, drift)},
        allreduce={GRADIENTS: ALLREDUCE},
    )


@pytest.fixture
def measured(study: StudyBuilder) -> StudyBuilder:
    """Add weak-scaling runs on 1 GPU, and on 8 GPUs of two nodes, whose clocks drift together by 20 %."""
    study.add(spec_of(1), Logs(cached_batch_seconds=0.1, no_sync_seconds=0.1))
    study.add(spec_of(8, placement=Placement(2, 4), strategy_options={"overlap": False}), logs_of(8, drift=0.2))
    study.add(spec_of(1, strategy_options={"overlap": False}), Logs(cached_batch_seconds=0.1, no_sync_seconds=0.1))
    return study


def milliseconds(text: str, what: str) -> float:
    found = re.search(rf"{what}([0-9.,]+) ms", text)
    assert found, text
    return float(found[1].replace(",", ""))


def test_it_finds_back_what_was_measured_and_goes_on_from_there(measured: StudyBuilder, analyse) -> None:
    done = analyse("simulate", measured.folder, "gpus=8,512", "latency_us=0")
    assert done.returncode == 0, done.stderr
    assert milliseconds(done.stdout, "check: on 8 GPUs simulated ") == pytest.approx(201.4, rel=0.01)
    assert "measured 200 ms" in done.stdout
    # A ring of 512 sends (511/512) / (7/8) times the bytes of a ring of 8.
    exposed = 100 * (511 / 512) / (7 / 8)
    large = next(line for line in done.stdout.splitlines() if line.startswith("  512 GPUs"))
    assert milliseconds(large, "exposed communication ") == pytest.approx(exposed, rel=0.01)
    # Only a GPU's own noise makes others wait, not the drift of 20 %, which the simulated steps do have.
    assert milliseconds(large, "imbalance ") == pytest.approx(100 * OWN * expected_maximum(512), rel=0.2)
    low, high = (milliseconds(large, what) for what in ("of the steps: ", " ms to "))
    assert high - low > 30
    assert "Simulated, not measured" in done.stdout
    assert "not simulated: it was measured on one GPU alone" in done.stdout


def test_runs_that_fail_are_simulated_beside_young_and_daly(measured: StudyBuilder, analyse) -> None:
    keys = ("mtbf_hours=8760", "checkpoint_seconds=120", "restart_seconds=300", "steps=10")
    done = analyse("simulate", measured.folder, "gpus=512", *keys)
    assert done.returncode == 0, done.stderr
    # A year / 128 nodes: 68.4 h; Young: sqrt(2 x 120 s x 246,375 s).
    assert "512 GPUs on 128 nodes, a failure every 68.4 h: save every 2.14 h (Young)" in done.stdout


def test_one_node_says_nothing_of_the_network_between_nodes(study: StudyBuilder, analyse) -> None:
    study.add(spec_of(4), logs_of(4))
    done = analyse("simulate", study.folder, "gpus=64")
    assert done.returncode == 2
    assert "give the bandwidth between nodes, bus_gb_per_s=" in done.stderr


@pytest.mark.parametrize(
    ("logs", "gpus", "words"),
    [
        (
            logs_of(8, block_seconds=3.0),
            8,
            "its check failed: on 8 GPUs simulated 201 ms, measured 300 ms, which is more than 10 % off",
        ),
        (
            logs_of(8),
            801,
            "800 steps of a GPU were measured without synchronisation, which says nothing about the slowest of 801: "
            "give gpus up to 800",
        ),
        (
            Logs(cached_batch_seconds=0.2, no_sync_seconds=0.1, allreduce={GRADIENTS: ALLREDUCE}),
            8,
            "its ranks took fewer than 6 rounds of steps without synchronisation",
        ),
    ],
)
def test_what_the_measurements_do_not_support_is_refused(
    study: StudyBuilder, analyse, logs: Logs, gpus: int, words: str
) -> None:
    study.add(spec_of(8, placement=Placement(2, 4), strategy_options={"overlap": False}), logs)
    done = analyse("simulate", study.folder, f"gpus={gpus}")
    assert done.returncode == 2
    assert words in done.stderr
    assert "ms per step" not in done.stdout


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ((), "gpus=...: give the numbers of GPUs"),
        (("gpus=0",), "gpus=...: give the numbers of GPUs"),
        (("gpus=8", "steps=0"), "steps=0: give a whole number from 1 on"),
        (("gpus=8", "steps=2.5"), "steps=2.5: give a whole number"),
        (("gpus=8", "mtbf_hours=nan"), "mtbf_hours=nan: give a number above 0"),
        (
            ("gpus=1000000",),
            "gpus=1000000 steps=1000: give at most 200,000,000 steps of a GPU in all, such as steps=200",
        ),
        (("gpus=8", "pigs=3"), "'pigs=3': give key=value, with one of gpus, steps"),
    ],
)
def test_keys_that_make_no_sense_are_refused(measured: StudyBuilder, analyse, keys, words: str) -> None:
    done = analyse("simulate", measured.folder, *keys)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
