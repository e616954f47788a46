"""Every framework's steps per second compared with a loop in the framework's own idioms, and the time to the first
step.

Steps per second: ResNet-20, synthetic 32x32 images without augmentation, 32 per step, fp32, one rank (strategy=plain),
one compute thread. The peers in minimal/ use nothing of this program: same network, same padding (TensorFlow's "same"
is asymmetric at stride 2 and a few per cent faster), SGD with momentum, batches from memory. Ours is the adapter's
`step` on batches of our data pipeline, timed as in the loop. Both alternate in one process: n = 150 pairs of blocks of
5 steps after two warm-up pairs, with alternating order. Our batches are prepared by a background thread, which may use
an idle core, as does tf.data in the TensorFlow and Keras peers.

Time to the first step: `python -m harness` with strategy=allreduce and 1 or 2 ranks, from the job's start in
result.json to the end of the last rank's first step in its log. It includes imports, data set, rendezvous, building the
network and compilation. n = 3, files in the page cache, no peer.

See RESULTS.md for the results and the machine.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Row, harness, measured_as_rank, paired
from harness.core.events import read_events, read_result
from harness.core.spec import read_run

FRAMEWORKS = ("pytorch", "tensorflow", "keras", "mxnet", "jax")
RANKS, REPEATS = (1, 2), 3
PAIRS, STEPS, BATCH = 150, 5, 32


def rows() -> list[Row]:
    result = []
    with tempfile.TemporaryDirectory() as folder:
        for framework in FRAMEWORKS:
            print(f"  {framework}", file=sys.stderr, flush=True)
            result += of_framework(framework, Path(folder))
    return result


def of_framework(framework: str, folder: Path) -> Iterator[Row]:
    runs = harness(
        *(folder, framework, "-m", f"framework={framework}", "strategy=allreduce", "scaling=weak"),
        *("cluster=local", "cluster.device=cpu", "model=resnet20", "dataset=synthetic", "dataset.augment=false"),
        *("measure=smoke", "measure.warmup_steps=1", "measure.steps=1", "measure.block_steps=1"),
        *("measure.probe_steps=0", "measure.evaluate_samples=0", f"batch={BATCH}"),
        *(f"gpus={','.join(map(str, RANKS))}", f"repeat={','.join(map(str, range(REPEATS)))}"),
    )
    seconds_per_block = measured_as_rank("beside", runs[0], PAIRS, STEPS)
    ours, peer = ([STEPS / s for s in seconds_per_block[name]] for name in ("ours", "peer"))
    what = f"{framework}: worker, steps per second"
    yield paired(what, "steps/s", ours, "minimal loop", peer, "≥ 0.99 of the peer")
    for ranks in RANKS:
        seconds = [seconds_to_first_step(run) for run in runs if read_run(run)[0].gpus == ranks]
        yield Row(f"{framework}: job to its first step, {ranks} rank{'s' * (ranks > 1)}", "s", seconds)


def seconds_to_first_step(run_dir: Path) -> float:
    result = read_result(run_dir)
    assert result is not None
    assert result["status"] == "completed", f"{run_dir.name}: {result['reason']}"
    logs = (run_dir / "attempt-1").glob("events.rank*.jsonl")
    first = [next(event["t"] for event in read_events(log).events if event["ev"] == "steps") for log in logs]
    return float(max(first) - result["started"])
