"""How long `python -m analysis` takes on a study of 1,000 runs.

The study: 1,000 runs of 50 series (5 models x 10 batch sizes), each on 1 and 2 ranks with 10 repeats; a log of
each rank with 20 measured blocks, 3 probes and an evaluation; every 50th run failed. It is written to a
temporary folder by the writers that the harness itself uses. "Uncached" begins without `analysis/runs.parquet`,
"cached" with it; each is a process of its own, from start to exit, imports included. The peer reads the same
1,500 logs with pandas.read_json, one after another, and does nothing with them. In turns, n = 3; the files are
in the page cache of the operating system, as on the login node that has just run the study. The results are in
RESULTS.md.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Row, median_of_ratios, python, seconds_of
from harness.events import EventWriter, write_result
from harness.spec import (
    WEAK,
    ClusterSpec,
    DatasetSpec,
    MeasureSpec,
    OptimizerSpec,
    Placement,
    RunSpec,
    Site,
    write_json,
    write_run,
)

RUNS, BLOCKS, N = 1000, 20, 3
PEER = (
    "import pathlib, sys, pandas; [pandas.read_json(p, lines=True) for p in pathlib.Path(sys.argv[1]).rglob('*.jsonl')]"
)


def rows() -> list[Row]:
    uncached, cached, peer = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        study = Path(temporary) / "thousand"
        make_study(study)
        for _ in range(N):
            (study / "analysis" / "runs.parquet").unlink(missing_ok=True)
            uncached.append(seconds_of(python("-m", "analysis", str(study))))
            cached.append(seconds_of(python("-m", "analysis", str(study))))
            peer.append(seconds_of(python("-c", PEER, str(study))))
    reader = "pandas.read_json of the logs alone"
    return [
        Row("report of 1,000 runs, first", "s", uncached, reader, peer, median_of_ratios(uncached, peer), "≤ 5 s"),
        Row("report of 1,000 runs, again (cached)", "s", cached, reader, peer, median_of_ratios(cached, peer)),
    ]


def make_study(folder: Path) -> None:
    ids = []
    (folder / "runs").mkdir(parents=True)
    site = Site("python", None, ".", "0123456789abcdef", None, None, 600.0)
    for i, spec in enumerate(specs()):
        ids.append(spec.run_id)
        run_dir = folder / "runs" / spec.run_id
        (run_dir / "attempt-1").mkdir(parents=True)
        write_run(run_dir, spec, site)
        for rank in range(spec.gpus):
            write_log(run_dir / "attempt-1" / f"events.rank{rank}.jsonl", rank, spec, slowness=1 + i % 7 / 100)
        write_result(run_dir, result_of(spec, failed=i % 50 == 49))
    invocation = {"t": 1.7e9, "command": ["python", "-m", "harness"], "code_version": site.code_version}
    invocation |= {"cluster": "atlas", "runs": ids, "arrays": []}
    write_json(folder / "study.json", {"v": 1, "study": "thousand", "created": 1.7e9, "invocations": [invocation]})


def specs() -> Iterator[RunSpec]:
    """50 series x 2 sizes x 10 repeats."""
    dataset = DatasetSpec("cifar10", "cifar10", 10, 3, 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    base = RunSpec(
        framework="pytorch",
        framework_options={},
        environment="pytorch",
        strategy="allreduce",
        strategy_options={},
        model="",
        dataset=dataset,
        precision="fp32",
        gpus=1,
        placement=Placement(1, 1),
        scaling=WEAK,
        global_batch=1,
        batch_per_gpu=1,
        seed=1,
        repeat=0,
        optimizer=OptimizerSpec(),
        measure=MeasureSpec(steps=10 * BLOCKS),
        cluster=ClusterSpec("atlas", "cuda", 8),
    )
    for model in ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110"):
        for batch in (16, 24, 32, 48, 64, 96, 128, 192, 256, 384):
            for gpus in (1, 2):
                for repeat in range(RUNS // 100):
                    size = {"gpus": gpus, "placement": Placement(1, gpus), "global_batch": batch * gpus}
                    yield dataclasses.replace(base, model=model, batch_per_gpu=batch, repeat=repeat, **size)


def write_log(path: Path, rank: int, spec: RunSpec, slowness: float) -> None:
    writer = EventWriter(path, rank)
    counts = {"parameters": 658_586, "gradient_bytes": 2_634_344, "train_samples": 50_000}
    batches = {"global_batch": spec.global_batch, "batch_per_gpu": spec.batch_per_gpu}
    machine = {"host": "node0", "machine": "boot", "cores": 64, "threads": 8, "device": "cuda", "device_name": "H100"}
    startup = {"imports": 2.0, "rendezvous": 0.5, "data": 1.0, "build": 0.7}
    versions = {"torch": "2.13.0"}
    writer.write(
        "start",
        world_size=spec.gpus,
        local_rank=rank,
        versions=versions,
        startup_seconds=startup,
        **counts,
        **batches,
        **machine,
    )
    step_seconds = slowness * (0.01 + spec.batch_per_gpu * 1e-4 * spec.gpus**0.1)
    for block in range(-1, BLOCKS):
        values = {"step": 10 + 10 * block, "n": 10, "samples": 10 * spec.batch_per_gpu, "loss": 1.5}
        seconds = 10 * step_seconds * (1 + block % 5 / 200)
        writer.write("steps", phase="measure" if block >= 0 else "warmup", seconds=seconds, **values)
    writer.write("probe", probe="cached_batch", n=10, seconds=9.5 * step_seconds)
    writer.write("probe", probe="no_sync", n=10, seconds=9 * step_seconds)
    writer.write("probe", probe="allreduce", n=10, seconds=0.01, bytes=2_634_344)
    steps = 10 * (BLOCKS + 1)
    seen = steps * spec.global_batch
    if rank == 0:
        writer.write("eval", step=steps, samples_seen=seen, samples=10_000, correct=7_200, accuracy=0.72, seconds=1.0)
    writer.write("end", steps=steps, samples_seen=seen, weights_checksum=12345.5)
    writer.close()


def result_of(spec: RunSpec, failed: bool) -> dict[str, object]:
    tail = [f"line {n} of what the rank said on stderr before it ended" for n in range(20)] if failed else []
    return {
        "v": 1,
        "run_id": spec.run_id,
        "status": "failed" if failed else "completed",
        "attempt": 1,
        "reason": "rank 0 ended with signal 9" if failed else None,
        "failed_rank": 0 if failed else None,
        "exit_code": -9 if failed else 0,
        "stderr_tail": tail,
        "started": 1.7e9,
        "ended": 1.7e9 + 60,
        "job_id": "17",
        "written_by": "job",
        "oversubscribed": None,
    }
