"""Builds studies of a training of the user's own, in the format of docs/run-directory.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study_builder import CREATED, StudyBuilder, TimedWriter, spec_of

from harness.core.serialization import write_json
from harness.core.spec import DatasetSpec, MeasureSpec, RunSpec
from harness.core.workload.spec import OWN, WorkloadSpec
from harness.study import rank_exits
from harness.study.rank_exits import RankExit

OWN_DATASET = DatasetSpec(OWN, OWN, 0, 0, 0, (), ())
COMMAND = ("train.py", "--batch-size", "{batch_per_gpu}", "--lr", "{lr}")
MEASURE = MeasureSpec(warmup_steps=10, steps=80, block_steps=10, probe_steps=0, evaluate_samples=0)


def workload_of(gpus: int = 1, batch: int = 128, **changes: Any) -> WorkloadSpec:
    values = {"kind": "script", "name": "train", "command": COMMAND, "params": {"lr": 0.1}, "code": "0123abc"}
    return WorkloadSpec(**{**values, "samples_per_step": gpus * batch, **changes})


def workload_spec(gpus: int = 1, workload: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    """The weak-scaling spec of a script on so many GPUs. workload: changes of its WorkloadSpec."""
    own = workload_of(gpus, changes.get("batch_per_gpu", 128), **(workload or {}))
    values = {"framework": own.kind, "strategy": OWN, "model": own.name, "dataset": OWN_DATASET, "precision": OWN}
    return spec_of(gpus, workload=own, environment="mine", **{"measure": MEASURE, **values, **changes})


@dataclass
class Seen:
    """What the ranks of a script log. block_seconds: of each measured block of ten steps. data_seconds: in each of
    them; one per rank; None: no DataLoader. world_size: None: not seen. ranks: that log; None: one per GPU. skipped:
    why there are no probes; None: nothing of them is logged."""

    block_seconds: Sequence[float] = (1.0, 1.02, 0.99, 1.01, 1.0, 0.98, 1.0, 1.0)
    data_seconds: Sequence[float] | None = None
    left_out_seconds: float | None = 0.0
    world_size: int | None = -1
    method: str = "hooks"
    stopped: str = "limit"
    ranks: int | None = None
    skipped: str | None = None
    ends: bool = True
    startup: dict[str, float] = field(default_factory=lambda: {"interpreter": 2.0})


def add_workload(builder: StudyBuilder, spec: RunSpec, seen: Seen | None = None, **result: Any) -> Path:
    """Writes one run and returns its folder."""
    seen = seen or Seen()
    run_dir = builder.add(spec, None, result, finished=False)
    attempt_dir = run_dir / "attempt-1"
    attempt_dir.mkdir()
    write_json(attempt_dir / "begin.json", {"t": CREATED, "job_id": "17"})
    for rank in range(seen.ranks or spec.gpus):
        writer = TimedWriter(attempt_dir / f"events.rank{rank}.jsonl", rank, CREATED)
        _write_rank(writer, rank, spec, seen)
        writer.close()
        rank_exits.write(attempt_dir, RankExit(rank, 0, writer.t + 1.0))
    if seen.ends:
        builder.add(spec, None, result)
        builder.requested.pop()
        builder.write_study()
    return run_dir


def workload_study(folder: Path, sizes: Sequence[int] = (1, 2, 4), repeats: int = 1, **changes: Any) -> StudyBuilder:
    """A study of a script whose steps take 3 % longer with each doubling; a tenth of a block waits for data."""
    builder = StudyBuilder(folder)
    for gpus in sizes:
        for repeat in range(repeats):
            factor = (1 + 0.03 * gpus.bit_length()) * (1 + 0.01 * repeat)
            seconds = [factor * value for value in Seen.block_seconds]
            seen = Seen(block_seconds=seconds, data_seconds=[0.1 * factor] * gpus)
            add_workload(builder, workload_spec(gpus, repeat=repeat, **changes), seen)
    return builder


def _write_rank(writer: TimedWriter, rank: int, spec: RunSpec, seen: Seen) -> None:
    workload = spec.workload
    assert workload is not None
    pattern = seen.method == "pattern"
    if pattern and rank:
        writer.write_after(9.0, "end", steps=None, samples_seen=None, samples=None, weights_checksum=None)
        return
    writer.write_after(
        2.0,
        "start",
        world_size=spec.gpus if seen.world_size == -1 else seen.world_size,
        local_rank=rank,
        host="node0",
        machine="boot-0",
        cores=64,
        cores_declared=64,
        threads=8,
        device=spec.cluster.device,
        device_name=None if pattern else "NVIDIA H100",
        device_id=None,
        parameters=None,
        gradient_bytes=None,
        global_batch=spec.global_batch,
        batch_per_gpu=spec.batch_per_gpu,
        train_samples=None,
        versions={} if pattern else {"torch": "2.13.0"},
        startup_seconds=seen.startup,
        communication=None,
    )
    measure, step = spec.measure, 0
    parts = [("first", 1, 3.0), ("warmup", measure.warmup_steps - 1, 9.0)]
    parts += [("measure", measure.block_steps, seconds) for seconds in seen.block_seconds]
    for phase, n, seconds in parts:
        waited = None if seen.data_seconds is None else seen.data_seconds[rank]
        writer.write_after(
            seconds + (seen.left_out_seconds or 0.0),
            "steps",
            phase=phase,
            step=step,
            n=n,
            seconds=seconds,
            issue_seconds=seconds / 2,
            first_issue_seconds=seconds / 2 / n,
            samples=n * workload.samples_per_step // (1 if pattern else spec.gpus),
            loss=1.5,
            data_seconds=waited if phase == "measure" else None,
            left_out_seconds=seen.left_out_seconds,
        )
        step += n
    if not seen.ends:
        return
    step_of = None if pattern else "SGD"
    told = {"step_of": step_of, "seen": ["SGD"], "handed_out": 128.0, "accumulation": None, "epochs": 1}
    writer.write_after(0.0, "workload", method=seen.method, unit=workload.unit, **told)
    writer.write_after(
        0.0,
        "protocol",
        stopped=seen.stopped,
        relative_half_width=None,
        precision=measure.precision,
        warmup_steps=measure.warmup_steps,
        stationary=None,
        measured_steps=step - measure.warmup_steps,
    )
    if seen.skipped is not None:
        writer.write_after(0.0, "probes", rounds=0, seconds=0.0, share=0.0, limit=0.1, skipped=seen.skipped)
    writer.write_after(0.0, "end", steps=step, samples_seen=step * workload.samples_per_step, samples=None,
                       weights_checksum=None)  # fmt: skip
