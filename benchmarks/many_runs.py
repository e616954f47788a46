"""Quickly writes a large study in the harness's format.

    python -m benchmarks.many_runs FOLDER [RUNS]

100 series (5 models x 10 batch sizes x 2 precisions) on 1, 2 and 4 ranks, with 80, 15 and 5 % of the repeats. Each
rank's log has a start event, 400 timed blocks of 10 steps and one of warm-up, 8 rounds of 3 probes, 5 evaluations (rank
0) and an end. Every 50th run failed, with its log cut off after a line (a torn line would stop pandas.read_json). Logs
are written by the harness's EventWriter once per size and for 8 speeds, then copied, since writing every line would
take longer than the benchmarks themselves; readers still parse every copy. spec.json, result.json and env.json are
individual: NODES machines with eight GPUs each, one in four with another driver.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.events import EventWriter
from harness.core.serialization import to_plain, write_json
from harness.core.spec import (
    SPEC_VERSION,
    WEAK,
    ClusterSpec,
    DatasetSpec,
    MeasureSpec,
    OptimizerSpec,
    Placement,
    RunSpec,
    Site,
)

RUNS, BLOCKS, SPEEDS, NODES = 10_000, 400, 8, 64
SITE = Site("python", None, ".", "0123456789abcdef", None, None, 600.0)
SHARES = {1: 0.8, 2: 0.15, 4: 0.05}  # of the repeats, by number of ranks
BEGIN = 1.7e9


def make_study(folder: Path, runs: int = RUNS, blocks: int = BLOCKS) -> None:
    """Write the study. runs: a multiple of 2,000, so that each size of a series has repeats."""
    (folder / "runs").mkdir(parents=True)
    ids, logs = [], _Logs(blocks)
    for i, spec in enumerate(specs(runs, blocks)):
        failed = i % 50 == 49
        run_dir, attempt = folder / "runs" / spec.run_id, folder / "runs" / spec.run_id / "attempt-1"
        attempt.mkdir(parents=True)
        document = {"v": SPEC_VERSION, "run_id": spec.run_id, "spec": to_plain(spec), "site": to_plain(SITE)}
        (run_dir / "spec.json").write_text(json.dumps(document))
        (run_dir / "result.json").write_text(json.dumps(_result(spec, failed)))
        (attempt / "begin.json").write_text(json.dumps({"t": BEGIN, "job_id": "17"}))
        (attempt / "env.json").write_text(json.dumps(_environment(spec, i), indent=1))
        for rank in range(spec.gpus):
            log = logs.of(spec, rank, i % SPEEDS)
            end = log.find(b"\n", len(log) // 2) + 1 if failed else len(log)
            (attempt / f"events.rank{rank}.jsonl").write_bytes(log[:end])
            exit_ = {"rank": rank, "code": -9 if failed else 0, "t": BEGIN + 900, "reason": None}
            (attempt / f"exit.rank{rank}.json").write_text(json.dumps(exit_))
            for name in ("stdout", "stderr"):
                (attempt / f"{name}.rank{rank}").touch()
        ids.append(spec.run_id)
    invocation = {"t": BEGIN, "command": ["python", "-m", "harness"], "code_version": SITE.code_version}
    invocation |= {"cluster": "atlas", "runs": ids, "arrays": []}
    write_json(folder / "study.json", {"v": 1, "study": folder.name, "created": BEGIN, "invocations": [invocation]})


def two_runs(study: Path, folder: Path) -> None:
    """Write a study of one series on one and two ranks, of runs of another one."""
    document = json.loads((study / "study.json").read_text())
    wanted = [spec.run_id for spec in specs(RUNS, BLOCKS) if spec.gpus < 4 and not spec.repeat][:2]
    for run_id in wanted:
        shutil.copytree(study / "runs" / run_id, folder / "runs" / run_id)
    invocations = [{**document["invocations"][0], "runs": wanted}]
    write_json(folder / "study.json", {**document, "study": folder.name, "invocations": invocations})


def specs(runs: int, blocks: int) -> Iterator[RunSpec]:
    dataset = DatasetSpec("cifar10", "cifar10", 10, 3, 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    base = RunSpec(
        framework="pytorch",
        framework_options={"compile": False},
        environment="pytorch",
        strategy="allreduce",
        strategy_options={"bucket_mb": 25.0},
        model="",
        dataset=dataset,
        precision="",
        gpus=1,
        placement=Placement(1, 1),
        scaling=WEAK,
        global_batch=1,
        batch_per_gpu=1,
        seed=1,
        repeat=0,
        optimizer=OptimizerSpec(),
        measure=MeasureSpec(steps=10 * blocks),
        cluster=ClusterSpec("atlas", "cuda", 8),
    )
    for model in ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110"):
        for batch in (16, 24, 32, 48, 64, 96, 128, 192, 256, 384):
            for precision in ("fp32", "bf16"):
                for gpus, share in SHARES.items():
                    size = {"gpus": gpus, "placement": Placement(1, gpus), "global_batch": batch * gpus}
                    what = {"model": model, "batch_per_gpu": batch, "precision": precision, **size}
                    for repeat in range(round(share * runs / 100)):
                        yield dataclasses.replace(base, repeat=repeat, **what)


class _Logs:
    """The bytes of a rank's log, cached by the parameters they depend on."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.made: dict[Any, bytes] = {}

    def of(self, spec: RunSpec, rank: int, speed: int) -> bytes:
        key = (spec.gpus, spec.batch_per_gpu, rank, speed)
        if key not in self.made:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "log"
                _write_log(path, rank, spec, 1 + speed / 100, self.blocks)
                self.made[key] = path.read_bytes()
        return self.made[key]


def _write_log(path: Path, rank: int, spec: RunSpec, slowness: float, blocks: int) -> None:
    writer, t = EventWriter(path, rank), BEGIN + 5.0
    writer.write(
        "start",
        t=t,
        world_size=spec.gpus,
        local_rank=rank,
        versions={"torch": "2.13.0"},
        startup_seconds={"imports": 2.0, "rendezvous": 0.5, "data": 1.0, "build": 0.7},
        parameters=658_586,
        gradient_bytes=2_634_344,
        train_samples=50_000,
        global_batch=spec.global_batch,
        batch_per_gpu=spec.batch_per_gpu,
        host="node0",
        machine="boot",
        cores=64,
        threads=8,
        device="cuda",
        device_name="NVIDIA H100 80GB HBM3",
        communication="nccl",
    )
    step_seconds = slowness * (0.01 + spec.batch_per_gpu * 1e-4 * spec.gpus**0.1)
    for block in range(-1, blocks):
        # Reproducible noise of about 2 %, with as many digits as a clock's readings.
        noise = 1 + ((block * 7919 + rank * 104_729) % 1009) / 50_000
        seconds, step = 10 * step_seconds * noise, 10 + 10 * block
        t += seconds
        values = {"step": step, "n": 10, "seconds": seconds, "samples": 10 * spec.batch_per_gpu, "joules": None}
        writer.write("steps", t=round(t, 6), phase="measure" if block >= 0 else "warmup", **values, loss=2 / (2 + step))
        if rank == 0 and (block + 1) % (blocks // 5) == 0 and block > 0:
            _evaluate(writer, t, step + 10, spec)
    for number in range(8):
        for probe, part in (("full", 1.0), ("cached_batch", 0.95), ("no_sync", 0.9)):
            writer.write("probe", t=t, probe=probe, round=number, n=5, seconds=5 * part * step_seconds)
    steps = 10 * (blocks + 1)
    seen = {"samples_seen": steps * spec.global_batch, "samples": steps * spec.batch_per_gpu}
    writer.write("end", t=t, steps=steps, **seen, weights_checksum=12345.5)
    writer.close()


def _evaluate(writer: EventWriter, t: float, step: int, spec: RunSpec) -> None:
    accuracy = 0.9 * step / (step + 1000)
    scored = {"samples": 10_000, "correct": round(1e4 * accuracy), "accuracy": accuracy, "loss": 0.9, "seconds": 1.0}
    writer.write("eval", t=t, step=step, samples_seen=step * spec.global_batch, **scored)


def _result(spec: RunSpec, failed: bool) -> dict[str, Any]:
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
        "started": BEGIN + spec.repeat,
        "ended": BEGIN + 900,
        "job_id": "17",
        "written_by": "job",
        "oversubscribed": None,
    }


def _environment(spec: RunSpec, i: int) -> dict[str, Any]:
    """The document that harness/worker/record/capture.py writes, for run number i."""
    node, gpus = i % NODES, range(8)
    driver = "570.86.15" if node % 4 else "550.54.15"
    uuids = [f"GPU-{node:04x}{gpu:04x}-1111-2222-3333-444455556666" for gpu in gpus]
    links = [[" X  " if other == gpu else "NV18" for other in gpus] for gpu in gpus]
    return {
        "v": 1,
        "host": f"node{node}",
        "platform": "Linux-6.8.0-45-generic-x86_64-with-glibc2.39",
        "python": "3.12.3",
        "interpreter": "/opt/envs/pytorch/bin/python",
        "versions": {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.27.3", "cudnn": "91200", "numpy": "2.3.1"},
        "code_version": SITE.code_version,
        "cpu": "AMD EPYC 9454 48-Core Processor",
        "cores": 96,
        "memory_bytes": 811_748_818_944,
        "gpus": [f"NVIDIA H100 80GB HBM3, {uuid}, {driver}, 81559 MiB" for uuid in uuids],
        "topology": [
            f"GPU{gpu}\t" + "\t".join(links[gpu]) + f"\t{48 * (gpu // 4)}-{48 * (gpu // 4) + 47}" for gpu in gpus
        ],
        "nvlink": [f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: {uuids[gpu]})" for gpu in gpus],
        "numa": {"0": "0-47", "1": "48-95"},
        "variables": {
            "SLURM_JOB_ID": str(1_000_000 + i),
            "SLURM_JOB_NODELIST": f"node{node}",
            "SLURM_NTASKS": str(spec.gpus),
            "SLURM_CPUS_ON_NODE": str(12 * spec.gpus),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(spec.gpus))),
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": f"/scratch/ten-thousand/runs/{spec.run_id}/attempt-1/nccl.rank0.log",
            "OMP_NUM_THREADS": "8",
        },
    }


if __name__ == "__main__":
    make_study(Path(sys.argv[1]), *map(int, sys.argv[2:]))
