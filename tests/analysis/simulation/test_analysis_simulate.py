"""`python -m analysis simulate`: from a study's measurements to unmeasured sizes."""

from __future__ import annotations

import re

import pytest
from study_builder import Logs, StudyBuilder, spec_of

from harness.core.spec import Placement

# Bytes of the gradients in the logs, and seconds of their allreduce on 8 GPUs: a bus bandwidth of 175 MB/s.
GRADIENTS = 10_000_000
ALLREDUCE = 0.1


@pytest.fixture
def measured(study: StudyBuilder) -> StudyBuilder:
    """Add weak-scaling runs: 0.1 s per step on one GPU; 0.2 s on 8 GPUs of two nodes, half of it the allreduce."""
    study.add(spec_of(1), Logs(cached_batch_seconds=0.1, no_sync_seconds=0.1))
    logs = Logs(
        block_seconds=[2.0, 2.02, 1.98, 2.0],
        cached_batch_seconds=0.2,
        no_sync_seconds=0.1,
        allreduce={GRADIENTS: ALLREDUCE},
    )
    study.add(spec_of(8, placement=Placement(2, 4), strategy_options={"overlap": False}), logs)
    study.add(spec_of(1, strategy_options={"overlap": False}), Logs(cached_batch_seconds=0.1, no_sync_seconds=0.1))
    return study


def milliseconds(text: str, what: str) -> float:
    found = re.search(rf"{what}([0-9.,]+) ms", text)
    assert found, text
    return float(found[1].replace(",", ""))


def test_it_finds_back_what_was_measured_and_goes_on_from_there(measured: StudyBuilder, analyse) -> None:
    done = analyse("simulate", measured.folder, "gpus=8,1024", "latency_us=0")
    assert done.returncode == 0, done.stderr
    # Noise of 1 % in 2 of 4 blocks makes the slowest of 8 slower than the mean.
    assert milliseconds(done.stdout, "check: on 8 GPUs simulated ") == pytest.approx(200, rel=0.03)
    assert "measured 200 ms" in done.stdout
    # A ring of 1,024 sends (1023/1024) / (7/8) times the bytes of a ring of 8.
    exposed = 100 * (1023 / 1024) / (7 / 8)
    large = next(line for line in done.stdout.splitlines() if line.startswith("  1,024 GPUs") or "1024 GPUs" in line)
    assert milliseconds(large, "exposed communication ") == pytest.approx(exposed, rel=0.01)
    assert "Simulated, not measured" in done.stdout
    assert "not simulated: it was measured on one GPU alone" in done.stdout


def test_runs_that_fail_are_simulated_beside_young_and_daly(measured: StudyBuilder, analyse) -> None:
    keys = ("mtbf_hours=8760", "checkpoint_seconds=120", "restart_seconds=300", "steps=10")
    done = analyse("simulate", measured.folder, "gpus=4096", *keys)
    assert done.returncode == 0, done.stderr
    # A year / 1,024 nodes: 8.55 h; Young: sqrt(2 x 120 s x 30,797 s).
    assert "4096 GPUs on 1024 nodes, a failure every 8.55 h: save every 45.3 min (Young)" in done.stdout


def test_one_node_says_nothing_of_the_network_between_nodes(study: StudyBuilder, analyse) -> None:
    logs = Logs(cached_batch_seconds=0.2, no_sync_seconds=0.1, allreduce={GRADIENTS: ALLREDUCE})
    study.add(spec_of(4), logs)
    done = analyse("simulate", study.folder, "gpus=64")
    assert done.returncode == 2
    assert "give the bandwidth between nodes, bus_gb_per_s=" in done.stderr
    assert analyse("simulate", study.folder, "gpus=64", "bus_gb_per_s=10").returncode == 0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ((), "gpus=...: give the numbers of GPUs"),
        (("gpus=0",), "gpus=...: give the numbers of GPUs"),
        (("gpus=8", "steps=0"), "steps=0: give a whole number from 1 on"),
        (("gpus=8", "steps=2.5"), "steps=2.5: give a whole number"),
        (("gpus=8", "mtbf_hours=nan"), "mtbf_hours=nan: give a number above 0"),
        (("gpus=8", "pigs=3"), "'pigs=3': give key=value, with one of gpus, steps"),
    ],
)
def test_keys_that_make_no_sense_are_refused(measured: StudyBuilder, analyse, keys, words: str) -> None:
    done = analyse("simulate", measured.folder, *keys)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
