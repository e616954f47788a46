"""How long `python -m analysis` takes on a study of 1,000 runs.

Result: 2.5 s uncached, 1.6 s cached; report.html is 0.7 MB.
Hardware: 2 cores of an AMD EPYC (x86-64 virtual machine), local disk; Python 3.11, pandas 3.1, matplotlib 3.11.
n: 3 of each, median stated; each is a process of its own, from start to exit, imports included.

The study: 1,000 runs of 50 series (5 models x 10 batch sizes), each on 1 and 2 ranks with 10 repeats; a log of each
rank with 20 measured blocks, 3 probes and an evaluation; every 50th run failed. It is written to a temporary folder by
the writers that the harness itself uses. "Uncached" begins without `analysis/runs.parquet`, "cached" with it. The files
are in the page cache of the operating system, as on the login node that has just run the study.

    python benchmarks/report.py
"""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.events import EventWriter, write_result  # noqa: E402
from harness.spec import (  # noqa: E402
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

RUNS, BLOCKS, REPETITIONS = 1000, 20, 3
SECONDS_ALLOWED = 5.0


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        study = Path(temporary) / "thousand"
        make_study(study)
        cache = study / "analysis" / "runs.parquet"
        times: dict[str, list[float]] = {"uncached": [], "cached": []}
        for _ in range(REPETITIONS):
            cache.unlink(missing_ok=True)
            times["uncached"].append(seconds_of_report(study))
            times["cached"].append(seconds_of_report(study))
        for name, seconds in times.items():
            shown = ", ".join(f"{s:.2f}" for s in seconds)
            print(f"{name:9} median {statistics.median(seconds):.2f} s of {RUNS:,} runs ({shown})")
        sizes = {name: (study / name).stat().st_size / 1024 for name in ("report.html", "speedup.svg", "speedup.png")}
        print("sizes     " + ", ".join(f"{name} {size:,.0f} KiB" for name, size in sizes.items()))
    print(f"hardware  {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    return 0 if statistics.median(times["uncached"]) <= SECONDS_ALLOWED else 1


def seconds_of_report(study: Path) -> float:
    begin = time.perf_counter()
    command = [sys.executable, "-m", "analysis", str(study)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


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


if __name__ == "__main__":
    sys.exit(main())
