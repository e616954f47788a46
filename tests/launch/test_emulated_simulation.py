"""Simulating 8 ranks from 4: emulated ranks with set noise on links of known speed.

More ranks need more cores: on two, gloo takes 8 ms longer than the link to learn that all of 16 have arrived. Of 64,
each step was 350 ms longer than simulated, alike with independent and common noise. For these,
tests/analysis/simulation/test_noise.py computes what each rank would take.
"""

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

MEASURED, LARGE = 4, 8
BOUND = 0.05  # as promised by docs/validation.md
BANDWIDTH_MB = 12.5  # so slow that gloo itself, on a few cores, is done before
NOISES = {
    "independent": {"jitter": 0.2},
    "common": {"jitter": 0.05, "common_jitter": 0.2},
    "heavy-tailed": {"jitter": 0.02, "late_probability": 0.05, "late_ms": 40.0},
}


@pytest.mark.whole
@pytest.mark.quiet
@pytest.mark.torch
@pytest.mark.timeout(700)
def test_the_step_of_more_ranks_is_simulated_from_fewer(cli: Cli, torch_python: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("real-time priority, which keeps other programs out, needs root")
    costs = {"compute_ms": 50.0, "message_mb": 0.25, "bandwidth_mb": BANDWIDTH_MB, "overlap": False, "buckets": 1}
    settings = [Setting(MEASURED, steps=80, **costs), Setting(LARGE, steps=400, **costs)]
    processes: list[list[tuple]] = [[] for _ in range(LARGE)]
    runs = {}
    for name, noise in NOISES.items():
        run_dirs = prepared(tmp_path / name / "runs", settings)
        for setting, run_dir in zip(settings, run_dirs, strict=True):
            spec, site = read_run(run_dir)
            probes = {"probe_steps": 5, "probe_rounds": 20} if setting.ranks == MEASURED else {"probe_steps": 0}
            measure = dataclasses.replace(spec.measure, **probes)
            options = {**spec.framework_options, **noise}
            write_run(run_dir, dataclasses.replace(spec, framework_options=options, measure=measure), site)
            for process, turn in zip(processes, turns_of(run_dir, setting.ranks), strict=False):
                process.append(turn)
        runs[name] = run_dirs
    with started(processes) as ranks:
        finished(ranks, 600)
    problems = []
    for name, (small, large) in runs.items():
        analysed(small)
        row = read_run_row(large)
        large.rename(tmp_path / name / "not-shown")
        write_json(tmp_path / name / "study.json", {"v": 1, "study": name, "created": 0.0, "invocations": []})
        keys = (f"gpus={LARGE}", "latency_us=0", f"bus_gb_per_s={BANDWIDTH_MB * MB / 1e9}", "steps=4000")
        done = cli("analysis", "simulate", str(tmp_path / name), *keys)
        found = re.search(rf"  {LARGE} CPU ranks: ([0-9.]+) ms per step", done.stdout)
        if found is None:
            problems.append(f"{name}: {done.stdout}{done.stderr}")
            continue
        simulated, measured = float(found[1]), 1000 * row["seconds"] / row["steps"]
        if abs(simulated / measured - 1) > BOUND:
            problems.append(f"{name}: simulated {simulated:.1f} ms, measured {measured:.1f} ms")
    assert not problems, "\n".join(problems)
