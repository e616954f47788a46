"""Simulating 8 and 64 ranks from 4: emulated ranks with set noise on links of known speed."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from emulated_runs import MB, Setting, analysed, finished, prepared, started, turns_of
from project import Cli

from analysis.read.run import read_run_row
from harness.core.serialization import write_json
from harness.core.spec import read_run, write_run

MEASURED = 4
BOUND = 0.05  # as promised by docs/validation.md
# Ranks to simulate, the mean compute time of a step in ms, a link so slow that gloo itself, on a few cores, is done
# before (on two, it needs 8 ms to learn that all of 16 ranks have arrived, and more for 64), and steps to run.
SIZES = [(8, 50.0, 12.5, 400), (64, 400.0, 2.5, 200)]
NOISES = {
    "independent": {"jitter": 0.2},
    "common": {"jitter": 0.05, "common_jitter": 0.2},
    "heavy-tailed": {"jitter": 0.02, "late_probability": 0.05},
}
# Mean delay of a late rank, in compute times.
LATE = 0.8
# Rank 0 waits for the last of 64 ranks, of which each imports PyTorch on one of a few cores.
START_SECONDS = 600.0


@pytest.mark.whole
@pytest.mark.quiet
@pytest.mark.torch
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("large_size", "compute_ms", "bandwidth_mb", "steps"), SIZES)
def test_the_step_of_more_ranks_is_simulated_from_fewer(
    cli: Cli, torch_python: Path, tmp_path: Path, large_size: int, compute_ms: float, bandwidth_mb: float, steps: int
) -> None:
    if os.geteuid() != 0:
        pytest.skip("real-time priority, which keeps other programs out, needs root")
    costs = {"compute_ms": compute_ms, "message_mb": 0.25, "bandwidth_mb": bandwidth_mb, "overlap": False, "buckets": 1}
    settings = [Setting(MEASURED, steps=80, **costs), Setting(large_size, steps=steps, **costs)]
    processes: list[list[tuple]] = [[] for _ in range(large_size)]
    runs = {}
    for name, noise in NOISES.items():
        run_dirs = prepared(tmp_path / name / "runs", settings, START_SECONDS)
        for setting, run_dir in zip(settings, run_dirs, strict=True):
            spec, site = read_run(run_dir)
            probes = {"probe_steps": 5, "probe_rounds": 20} if setting.ranks == MEASURED else {"probe_steps": 0}
            measure = dataclasses.replace(spec.measure, **probes)
            options = {**spec.framework_options, **noise, "late_ms": LATE * compute_ms}
            write_run(run_dir, dataclasses.replace(spec, framework_options=options, measure=measure), site)
            for process, turn in zip(processes, turns_of(run_dir, setting.ranks), strict=False):
                process.append(turn)
        runs[name] = run_dirs
    with started(processes) as ranks:
        finished(ranks, 2000)
    problems = []
    for name, (small, large) in runs.items():
        analysed(small)
        row = read_run_row(large)
        large.rename(tmp_path / name / "not-shown")
        write_json(tmp_path / name / "study.json", {"v": 1, "study": name, "created": 0.0, "invocations": []})
        keys = (f"gpus={large_size}", "latency_us=0", f"bus_gb_per_s={bandwidth_mb * MB / 1e9}", "steps=4000")
        done = cli("analysis", "simulate", str(tmp_path / name), *keys)
        found = re.search(rf"  {large_size} CPU ranks: ([0-9.]+) ms per step", done.stdout)
        if found is None:
            problems.append(f"{name}: {done.stdout}{done.stderr}")
            continue
        simulated, measured = float(found[1]), 1000 * row["seconds"] / row["steps"]
        if abs(simulated / measured - 1) > BOUND:
            problems.append(f"{name}: simulated {simulated:.1f} ms, measured {measured:.1f} ms")
    assert not problems, "\n".join(problems)
