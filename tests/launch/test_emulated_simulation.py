"""Simulating more emulated ranks from fewer, with set noise: steps of 8 from 4, the slowest of 64 from 16.

The whole step of more ranks needs more cores: on two, gloo takes 8 ms longer than the link to learn that all of 16 have
arrived, and of 64 350 ms. What each of 64 takes without the others does not depend on that.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from emulated_runs import (
    HAS_PRIORITY,
    MB,
    Setting,
    Wrong,
    analysed,
    assert_right,
    finished,
    is_disturbed,
    prepared,
    started,
    turns_of,
)
from project import Cli

from analysis.read.attempts import read_attempts
from analysis.read.run import read_run_row
from harness.core.serialization import write_json
from harness.core.spec import RunSpec, read_run, write_run
from harness.worker.emulated_noise import seconds_with_noise

MEASURED, LARGE = 4, 8
BOUND = 0.05  # as promised by docs/validation.md
BANDWIDTH_MB = 12.5  # so slow that gloo itself, on a few cores, is done before
NOISES = {
    "independent": {"jitter": 0.2},
    "common": {"jitter": 0.05, "common_jitter": 0.2},
    "heavy-tailed": {"jitter": 0.02, "late_probability": 0.05, "late_ms": 40.0},
}


COSTS = {"compute_ms": 50.0, "message_mb": 0.25, "bandwidth_mb": BANDWIDTH_MB, "overlap": False, "buckets": 1}
needs_priority = pytest.mark.skipif(not HAS_PRIORITY, reason="real-time priority needs root")


@pytest.mark.whole
@pytest.mark.quiet
@pytest.mark.torch
@pytest.mark.timeout(3600)
@needs_priority
def test_the_step_of_more_ranks_is_simulated_from_fewer(cli: Cli, torch_python: Path, tmp_path: Path) -> None:
    assert_right(partial(steps_simulated_wrongly, cli), tmp_path, list(NOISES), most_held_up=0)


def steps_simulated_wrongly(cli: Cli, folder: Path, names: Sequence[str]) -> dict[str, Wrong]:
    """Run with each of these noises, and return the simulated steps that are off by more than BOUND."""
    small, large = Setting(MEASURED, steps=80, **COSTS), Setting(LARGE, steps=400, **COSTS)
    probes = [{"probe_steps": 5, "probe_rounds": 20}, {"probe_steps": 0}]
    noises = {name: NOISES[name] for name in names}
    off = {}
    for name, (known, asked) in run_with_noises(folder, noises, (small, large), probes, 600).items():
        row = read_run_row(asked)
        simulated = simulated_from(cli, known, LARGE)["step"]
        measured = 1000 * row["seconds"] / row["steps"]
        if abs(simulated / measured - 1) > BOUND:
            text = f"{name}: simulated {simulated:.1f} ms, measured {measured:.1f} ms"
            off[name] = Wrong(text, were_disturbed(known, asked))
    return off


@pytest.mark.whole
@pytest.mark.quiet
@pytest.mark.torch
@pytest.mark.timeout(3600)
@needs_priority
@pytest.mark.parametrize(
    ("noise", "rounds"),
    [
        (NOISES["independent"], 20),
        (NOISES["common"], 20),
        # Few of the steps say how long the tail is (docs/prediction.md).
        ({"jitter": 0.02, "late_probability": 0.03, "late_ms": 30.0}, 60),
    ],
    ids=NOISES,
)
def test_the_slowest_of_64_ranks_is_simulated_from_16(
    cli: Cli, torch_python: Path, tmp_path: Path, noise: dict[str, float], rounds: int
) -> None:
    assert_right(partial(slowest_simulated_wrongly, cli, noise, rounds), tmp_path, ["one"], most_held_up=0)


def slowest_simulated_wrongly(
    cli: Cli, noise: dict[str, float], rounds: int, folder: Path, names: Sequence[str]
) -> dict[str, Wrong]:
    """Run with the noise, and return what is off by more than BOUND: what the slowest rank took, or its simulation."""
    costs = {**COSTS, "compute_ms": 100.0}
    small, large = Setting(16, steps=40, **costs), Setting(64, **costs)
    probes = [{"probe_steps": 5, "probe_rounds": rounds}, {"probe_steps": 1, "probe_rounds": 12}]
    [(name, (known, asked))] = run_with_noises(
        folder, dict.fromkeys(names, noise), (small, large), probes, 1100
    ).items()
    spec, _ = read_run(asked)

    def set_seconds(step: int) -> np.ndarray:
        return np.array([seconds_with_noise(0.1, spec.framework_options, spec.seed, rank, step) for rank in range(64)])

    # On two cores, each of the 64 really takes what was set.
    pairs = [
        (f"the slowest rank in round {number}", took.max(), set_seconds(no_sync_step(spec, number)).max())
        for number, took in no_sync_seconds(asked).items()
    ]
    found = simulated_from(cli, known, 64)
    # Relative to the mean, which common noise moves from one time to another; of more steps than were run.
    truth = np.array([set_seconds(step) for step in range(1000)])
    simulated = found["slowest"] / (found["slowest"] - found["imbalance"])
    pairs.append(("the slowest rank, simulated", simulated, truth.max(axis=1).mean() / truth.mean()))
    wrong = [
        f"{what}: {had:.4g} instead of {asked_for:.4g}"
        for what, had, asked_for in pairs
        if abs(had / asked_for - 1) > BOUND
    ]
    return {name: Wrong("; ".join(wrong), were_disturbed(known, asked))} if wrong else {}


def were_disturbed(study: Path, run_dir: Path) -> bool:
    """Return whether the hypervisor took processor time during a run of the study, or during this one."""
    return is_disturbed(run_dir) or any(map(is_disturbed, (study / "runs").iterdir()))


def run_with_noises(
    folder: Path,
    noises: dict[str, dict[str, float]],
    settings: Sequence[Setting],
    probes: Sequence[dict[str, int]],
    limit: float,
) -> dict[str, tuple[Path, Path]]:
    """Run a small and a large setting, each with its probes, with every noise; return by noise the study of the small
    run, and the folder of the large one, which is not part of that study."""
    processes: list[list[tuple]] = [[] for _ in range(settings[1].ranks)]
    runs = {}
    for name, noise in noises.items():
        run_dirs = prepared(folder / name / "runs", settings)
        for setting, run_dir, own in zip(settings, run_dirs, probes, strict=True):
            spec, site = read_run(run_dir)
            measure = dataclasses.replace(spec.measure, **own)
            options = {**spec.framework_options, **noise}
            # Ranks of the large run alone wait for those of the small one.
            site = dataclasses.replace(site, timeout_seconds=limit)
            write_run(run_dir, dataclasses.replace(spec, framework_options=options, measure=measure), site)
            for process, turn in zip(processes, turns_of(run_dir, setting.ranks), strict=False):
                process.append(turn)
        runs[name] = run_dirs
    with started(processes) as ranks:
        finished(ranks, limit)
    found = {}
    for name, (known, asked) in runs.items():
        analysed(known)
        write_json(folder / name / "study.json", {"v": 1, "study": name, "created": 0.0, "invocations": []})
        found[name] = (folder / name, asked.rename(folder / name / "not-shown"))
    return found


def simulated_from(cli: Cli, study: Path, ranks: int) -> dict[str, float]:
    """Return what `simulate` says of so many ranks, in milliseconds: step, imbalance and slowest rank."""
    keys = (f"gpus={ranks}", "latency_us=0", f"bus_gb_per_s={BANDWIDTH_MB * MB / 1e9}", "steps=4000")
    done = cli("analysis", "simulate", str(study), *keys)
    pattern = (
        rf"  {ranks} CPU ranks: ([0-9.]+) ms per step .*imbalance ([0-9.]+) ms, exposed communication ([0-9.]+) ms"
    )
    found = re.search(pattern, done.stdout)
    assert found, done.stdout + done.stderr
    step, imbalance, exposed = map(float, found.groups())
    return {"step": step, "imbalance": imbalance, "slowest": step - exposed}


def no_sync_seconds(run_dir: Path) -> dict[int, np.ndarray]:
    """Return the seconds of each rank's step without synchronisation, by round."""
    ranks = read_attempts(run_dir)[-1].ranks.values()
    rounds = [rank.probes[("no_sync", None)] for rank in ranks]
    return {number: np.array([own[number][1] / own[number][0] for own in rounds]) for number in rounds[0]}


def no_sync_step(spec: RunSpec, number: int) -> int:
    """Return which of its steps a rank timed without synchronisation in a round: after training, after one call of each
    of the three kinds, and in each round after an untimed step and a timed one of the other two kinds."""
    measure = spec.measure
    assert measure.probe_steps == 1
    return measure.warmup_steps + measure.steps + 3 + 6 * number + 5
