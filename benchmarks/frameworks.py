"""Every framework: our worker's steps per second beside a loop in the framework's own idioms, and how long a job takes
to its first step.

Steps per second: ResNet-20, synthetic 32x32 images without augmentation, 32 per step, fp32, one rank alone
(strategy=plain), one compute thread. The peers are in minimal/, written without anything of this program: the same
network with the same padding (TensorFlow's own "same" is asymmetric where the stride is 2, and a few per cent faster),
SGD with momentum, batches from memory. Ours is the adapter's `step` on batches of our data pipeline, timed as the loop
does it. Both live in one process and take turns, so that they meet the same machine: n = 30 pairs of blocks of 10
steps after two that are not counted; who goes first changes from pair to pair. Ours makes its batches in a thread of
its own, which may use a core that is idle; so does tf.data, the peer of TensorFlow and Keras.

To the first step: `python -m harness` with strategy=allreduce and 1 or 2 ranks; from the begin of the job, as
result.json has it, to the end of the first step on the last rank, as their logs have it. That is imports, data set,
rendezvous, network, and what the framework compiles. n = 3 each; the files are in the page cache. No peer.

The results are in RESULTS.md, with the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import ROOT, Row, paired, python
from harness.core.events import read_events
from harness.core.rendezvous import Rendezvous
from harness.core.spec import read_run
from harness.node.command import rank_environment

FRAMEWORKS = ("pytorch", "tensorflow", "keras", "mxnet", "jax")
RANKS, REPEATS = (1, 2), 3
PAIRS, STEPS, BATCH = 30, 10, 32


def rows() -> list[Row]:
    result = []
    with tempfile.TemporaryDirectory() as folder:
        for framework in FRAMEWORKS:
            print(f"  {framework}", file=sys.stderr, flush=True)
            result += of_framework(framework, Path(folder))
    return result


def of_framework(framework: str, folder: Path) -> Iterator[Row]:
    command = python(
        *("-m", "harness", "-m", f"framework={framework}", "strategy=allreduce", "scaling=weak"),
        *("cluster=local", "cluster.device=cpu", "model=resnet20", "dataset=synthetic", "dataset.augment=false"),
        *("measure=smoke", "measure.warmup_steps=1", "measure.steps=1", "measure.block_steps=1"),
        *("measure.probe_steps=0", "measure.evaluate_samples=0", f"batch={BATCH}", f"study={framework}"),
        *(f"gpus={','.join(map(str, RANKS))}", f"repeat={','.join(map(str, range(REPEATS)))}"),
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
    runs = sorted((folder / "results" / framework / "runs").iterdir())
    ours, peer = steps_per_second(runs[0])
    what = f"{framework}: worker, steps per second"
    yield paired(what, "steps/s", ours, "minimal loop", peer, "≥ 0.99 of the peer")
    for ranks in RANKS:
        seconds = [seconds_to_first_step(run) for run in runs if read_run(run)[0].gpus == ranks]
        yield Row(f"{framework}: job to its first step, {ranks} rank{'s' * (ranks > 1)}", "s", seconds)


def steps_per_second(run_dir: Path) -> tuple[list[float], list[float]]:
    spec, site = read_run(run_dir)
    environment = rank_environment(spec, site, Rendezvous(0, 1, 0, 1, "127.0.0.1", 0), os.environ)
    command = [site.python, "-m", "benchmarks.beside", str(run_dir), str(PAIRS), str(STEPS)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment)
    seconds = json.loads(done.stdout.splitlines()[-1])
    return [STEPS / s for s in seconds["ours"]], [STEPS / s for s in seconds["peer"]]


def seconds_to_first_step(run_dir: Path) -> float:
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "completed", f"{run_dir.name}: {result['reason']}"
    logs = (run_dir / "attempt-1").glob("events.rank*.jsonl")
    first = [next(event["t"] for event in read_events(log).events if event["ev"] == "steps") for log in logs]
    return float(max(first) - result["started"])
