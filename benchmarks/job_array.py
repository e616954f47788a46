"""Overhead of the harness per run of a job array: 200 trivial runs, compared with `sbatch --array` and
hydra-submitit-launcher.

Uses a temporary Slurm cluster (sbatch/slurm-cluster.sh) with one node that has as many CPUs as this machine. A run is
one rank of framework=emulated with ten steps that take no time: an interpreter, its imports, a log. Three arms
alternate N times, each with its own folders:

    ours        `python -m harness -m seed=range(200) wait=false`
    plain       `sbatch --array=0-199` of a script that reads its line of a file and starts the same worker with srun
    launcher    hydra-submitit-launcher in its own environment: one job of a Hydra sweep runs the same command

The partition is closed while an arm submits and then opened. Timed are the first 20 jobs to finish, the next 20, and so
on, divided by 20; ratios compare the same 20 of two arms. So neither submission (see submission.py) nor waiting is
included. Afterwards every run is checked for success. The worker's command, Python, environment and Slurm options are
the same; ours also includes the supervisor of the rank, its exit status, result.json, detection of oversubscription,
and energy. Needs root and Slurm's packages, and the package index for the launcher; what is missing is skipped with a
note. Results are in RESULTS.md.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common import Row, paired, python, seconds_of
from benchmarks.submission import closed, cluster
from harness.core.events import read_events
from harness.core.rendezvous import Rendezvous, make_token
from harness.core.spec import read_run
from harness.node.command import rank_environment

N = 2
RUNS, TOGETHER = 200, 20
# The launcher's last release, with the Hydra and submitit of the harness.
PINNED = ("hydra-submitit-launcher==1.2.0", "hydra-core==1.3.8", "submitit==1.5.4")
SWEEP = (
    *("-m", f"seed=range({RUNS})", "gpus=1", "framework=emulated", "framework.options.compute_ms=0", "strategy=plain"),
    *("model=resnet20", "dataset=synthetic", "batch=1", "cluster=cpu", "cluster.gpus_per_node=1"),
    *("cluster.cpus_per_gpu=1", "cluster.memory_per_node=8000M", "measure.precision=null", "measure.warmup_steps=2"),
    *("measure.warmup_limit_steps=null", "measure.steps=8", "measure.block_steps=2", "measure.probe_steps=0"),
    *("measure.evaluate_samples=0", "wait=false"),
)
WORKER = 'exec "{python}" -u -m harness.worker "$run" "$run/attempt-1"'
PLAIN = """#!/bin/bash
{options}
run=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {folder}/runs.txt)
export run {variables}
srun --unbuffered --output {folder}/%a.out --error {folder}/%a.err --kill-on-bad-exit=1 --cpus-per-task=1 \\
    --cpu-bind=cores bash -c '{worker}'
"""
LAUNCHED = """
import subprocess, hydra
@hydra.main(version_base="1.3", config_path=None)
def app(cfg):
    run = open("{folder}/runs.txt").read().splitlines()[cfg.run]
    subprocess.run(["bash", "-c", 'export run="$0" {variables}; {worker}', run], check=True)
app()
"""


def rows() -> list[Row]:
    if os.geteuid() != 0 or shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        print("job_array: left out, it needs root and Slurm for a cluster of its own", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, cluster(cpus=os.cpu_count() or 1):
        return list(_rows(Path(folder)))


def _rows(folder: Path) -> Iterator[Row]:
    launcher = _launcher(folder)
    ours: list[float] = []
    plain: list[float] = []
    launched: list[float] = []
    for turn in range(N):
        own = folder / f"ours{turn}"
        own.mkdir()
        ours += timed(functools.partial(harness, own))
        runs = sorted((own / "results" / "scaling" / "runs").iterdir())
        results = [json.loads((run / "result.json").read_text()) for run in runs]
        failed = [result for result in results if result["status"] != "completed"]
        assert not failed, failed[0]
        example = runs[0]
        plain += timed(functools.partial(by_sbatch, copy(folder / f"plain{turn}", runs), example))
        check(folder / f"plain{turn}")
        if launcher is not None:
            launched += timed(functools.partial(by_launcher, copy(folder / f"launched{turn}", runs), example, launcher))
            check(folder / f"launched{turn}")
    what = f"array of {RUNS} trivial runs, per run"
    yield paired(what, "s", ours, "plain `sbatch --array` of the worker's command", plain, "≤ 1.15 of the peer")
    if launched:
        yield paired(what, "s", ours, "hydra-submitit-launcher", launched)


def timed(submit: Callable[[], subprocess.Popen[bytes] | None]) -> list[float]:
    """Seconds per run of each group of TOGETHER finished runs, in order, from when the partition opens."""
    with closed():
        waiting = submit()
        while _queued() < RUNS:
            time.sleep(0.2)
    marks = [time.perf_counter()]
    while (gone := len(marks) - 1) * TOGETHER < RUNS:
        if _queued() <= RUNS - (gone + 1) * TOGETHER:
            marks.append(time.perf_counter())
        else:
            time.sleep(0.1)
    if waiting is not None:
        assert waiting.wait(120) == 0, "the launcher failed"
    return [(after - before) / TOGETHER for before, after in itertools.pairwise(marks)]


def harness(folder: Path) -> None:
    seconds_of(python("-m", "harness", *SWEEP), cwd=folder)


def by_sbatch(folder: Path, example: Path) -> None:
    """Submit with the options of the harness's script, found in the folder of its first job."""
    (script, *_) = (example.parents[1] / "submitit").glob("*/submission.sh")
    kept = ("--cpus-per-task", "--mem", "--nodes", "--ntasks-per-node", "--time", "--requeue", "--array", "--signal")
    lines = script.read_text().splitlines()
    options = [line for line in lines if line.startswith(tuple(f"#SBATCH {option}" for option in kept))]
    options.append(f"#SBATCH --output={folder}/%a.log")
    plain = folder / "plain.sh"
    plain.write_text(PLAIN.format(options="\n".join(options), folder=folder, **_worker(example)))
    subprocess.run(["sbatch", str(plain)], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def by_launcher(folder: Path, example: Path, launcher: Path) -> subprocess.Popen[bytes]:
    app = folder / "app.py"
    app.write_text(LAUNCHED.format(folder=folder, **_worker(example)))
    options = ("nodes=1", "tasks_per_node=1", "cpus_per_task=1", "mem_gb=8", "timeout_min=30")
    command = [
        *(str(launcher), str(app), "-m", "hydra/launcher=submitit_slurm", f"+run=range({RUNS})"),
        *(f"hydra.launcher.{option}" for option in (*options, f"array_parallelism={RUNS}")),
    ]
    with open(folder / "launcher.log", "wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def copy(folder: Path, runs: list[Path]) -> Path:
    """Copy runs as they are before their first attempt; runs.txt lists their paths."""
    for run in runs:
        (folder / "runs" / run.name / "attempt-1").mkdir(parents=True)
        make_token(folder / "runs" / run.name / "attempt-1")
        shutil.copy(run / "spec.json", folder / "runs" / run.name)
    (folder / "runs.txt").write_text("".join(f"{folder}/runs/{run.name}\n" for run in runs))
    return folder


def check(folder: Path) -> None:
    logs = list(folder.glob("runs/*/attempt-1/events.rank0.jsonl"))
    ended = sum(any(event["ev"] == "end" for event in read_events(log).events) for log in logs)
    assert ended == RUNS, f"{ended} of {RUNS} ended; see {folder}"


def _worker(example: Path) -> dict[str, str]:
    """The worker's command, and the variables that the harness sets besides the rank's."""
    spec, site = read_run(example)
    mine = rank_environment(spec, site, Rendezvous(0, 1, 0, 1, "", 0), {})
    variables = {name: value for name, value in mine.items() if name not in Rendezvous(0, 1, 0, 1, "", 0).environment()}
    words = " ".join(f'{name}="{value}"' for name, value in variables.items())
    return {"worker": WORKER.format(python=site.python), "variables": words}


def _launcher(folder: Path) -> Path | None:
    """The Python of an environment with the launcher; None, with a note, if it cannot be created."""
    made = subprocess.run([sys.executable, "-m", "venv", str(folder / "launcher")], capture_output=True)
    there = folder / "launcher" / "bin" / "python"
    if made.returncode == 0:
        made = subprocess.run([there, "-m", "pip", "install", "--quiet", *PINNED], capture_output=True)
    if made.returncode == 0:
        return there
    print(f"job_array: hydra-submitit-launcher left out: {made.stderr.decode()[-500:]}", file=sys.stderr)
    return None


def _queued() -> int:
    done = subprocess.run(["squeue", "--me", "--array", "--noheader"], capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())
