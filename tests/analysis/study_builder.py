"""Builds study folders for the tests with the harness's own writers.

Runs are as regular as possible, so that figures can be calculated by hand: each block of a rank takes `block_seconds`
and has `batch_per_gpu` x `n` samples. An attempt's clock starts at CREATED and advances by what is logged: 3 s of
start-up, 9 per warm-up block, the blocks, checkpoints and probes, 2 per evaluation, and 1 until the rank has exited.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.core import seals
from harness.core.events import EventWriter, write_result
from harness.core.measuring.protocol import Protocol
from harness.core.serialization import write_json
from harness.core.spec import (
    WEAK,
    ClusterSpec,
    DatasetSpec,
    MeasureSpec,
    OptimizerSpec,
    Placement,
    RunSpec,
    Site,
    write_run,
)
from harness.study import rank_exits
from harness.study.rank_exits import RankExit

Gradient = tuple[float | None, float | None] | None

GRADIENT_BYTES = 2_634_344
CREATED = 1_700_000_000.0
DATASET = DatasetSpec("cifar10", "cifar10", 10, 3, 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
SPEC = RunSpec(
    framework="pytorch",
    framework_options={},
    environment="pytorch",
    strategy="allreduce",
    strategy_options={},
    model="resnet44",
    dataset=DATASET,
    precision="fp32",
    gpus=1,
    placement=Placement(1, 1),
    scaling=WEAK,
    global_batch=128,
    batch_per_gpu=128,
    seed=1,
    repeat=0,
    optimizer=OptimizerSpec(),
    measure=MeasureSpec(warmup_steps=10, steps=40, block_steps=10),
    cluster=ClusterSpec("atlas", "cuda", 8),
)
SITE = Site("python", None, ".", "0123456789abcdef", None, None, 600.0)
RESULT = {
    "v": 1,
    "status": "completed",
    "attempt": 1,
    "reason": None,
    "failed_rank": None,
    "exit_code": 0,
    "stderr_tail": [],
    "started": CREATED,
    "ended": CREATED + 60,
    "job_id": "17",
    "written_by": "job",
    "oversubscribed": None,
}


def spec_of(gpus: int = 1, **changes: Any) -> RunSpec:
    """Return the tests' weak-scaling spec on this many GPUs, all on one node unless `placement` is given."""
    placement = changes.pop("placement", Placement(1, gpus))
    batch = changes.pop("batch_per_gpu", 128)
    values = {"global_batch": gpus * batch, "batch_per_gpu": batch, **changes}
    return dataclasses.replace(SPEC, gpus=gpus, placement=placement, **values)


@dataclass
class Logs:
    """What the ranks of one attempt log. block_seconds: of each block of ten steps after the warm-up, or after the step
    from which the attempt resumed; one list for all ranks, or one per rank.

    parameters, gradients, samples: for all ranks, or a list per rank. gradients: (sum, magnitude) of the first
    gradient; None: not logged. evaluations: accuracies during training, by step. samples: in the end event; None: those
    of the rank's blocks. later: whether to write fields that were added to the logs later. verify: arrays of
    verify.npz. staleness: values of the staleness event. returns: values of server_back events on rank 0.
    fallbacks: texts of fallback events, on every rank. energy: what each rank meters, and the joules of each block.
    start: further values of the start event, for all ranks or a list per rank. resources: values of each rank's
    resources event. devices: device events of rank 0, values by step.

    rounds: seconds per step of each probe in each round, for all ranks or per rank; the allreduce's message has
    GRADIENT_BYTES. probes: values of the probes event.

    resume: values of the resume event. checkpoints: seconds of the checkpoint at each step. fault: (rank, step) of an
    injected fault. ends: whether training ended, or was cut off after the last block. begin: start of the ranks; None:
    not recorded. exit_codes: one per rank; None: all 0; empty: the supervisors died too. issued: share of a step's time
    in which the host issues it, for all ranks or a list per rank; None: not logged.
    """

    block_seconds: Sequence[float] | Sequence[Sequence[float]] = (1.0, 1.0, 1.0, 1.0)
    world_size: int | None = None
    device: str | None = None
    device_name: str = "NVIDIA H100"
    versions: Mapping[str, str] = field(default_factory=lambda: {"torch": "2.13.0", "nccl": "2.27"})
    startup_seconds: Mapping[str, float] = field(default_factory=lambda: {"imports": 2.0, "build": 1.0})
    cached_batch_seconds: float | None = None
    no_sync_seconds: float | None = None
    rounds: Mapping[str, Sequence[float | Sequence[float]]] = field(default_factory=dict)
    probes: Mapping[str, Any] | None = None
    allreduce: Mapping[int, float] = field(default_factory=dict)
    accuracy: float | None = None
    evaluations: Mapping[int, float] = field(default_factory=dict)
    checksums: Sequence[float | None] | None = None
    communication: str = "nccl"
    energy: tuple[str, float | None] | None = None
    start: Mapping[str, Any] | list[Mapping[str, Any]] = field(default_factory=dict)
    resources: Sequence[Mapping[str, Any]] = ()
    devices: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    parameters: int | list[int] = 658_586
    gradients: Gradient | list[Gradient] = (-9.0, 640.0)
    samples: int | list[int] | None = None
    later: bool = True
    verify: Mapping[str, np.ndarray] | None = None
    staleness: Mapping[str, Any] | None = None
    returns: Sequence[Mapping[str, Any]] = ()
    fallbacks: Sequence[str] = ()
    resume: Mapping[str, Any] | None = None
    checkpoints: Mapping[int, float] = field(default_factory=dict)
    fault: tuple[int, int] | None = None
    ends: bool = True
    begin: float | None = CREATED
    exit_codes: Sequence[int] | None = None
    issued: float | list[float | None] | None = None


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    """Make the float32 arrays of verify=true: the largest logit is 2, the norm of the gradients 5, and the losses move
    by 0.5. None: omit the array."""
    values = {
        "logits": [[2.0, -1.0], [0.5, 0.0]],
        "losses": [2.0] * 10 + [1.5] * 10,
        "g000": [[3.0], [0.0]],
        "g001": [4.0],
        **changes,
    }
    return {name: np.array(value, np.float32) for name, value in values.items() if value is not None}


def resume(step: int, from_attempt: int | None = None, **values: Any) -> dict[str, Any]:
    """Make a resume event like `harness.worker.checkpoint`."""
    return {
        "step": step,
        "from_attempt": from_attempt,
        "ignored": None,
        "lost_steps": 0,
        "idle_seconds": 60.0,
        **values,
    }


class StudyBuilder:
    """A study in a folder: `add` runs, then pass `folder` to the code under test.

    sealed: write checksums, as the harness does. Without them, as in older studies, tests can change the files.
    """

    def __init__(self, folder: Path, name: str = "how-it-scales", sealed: bool = False) -> None:
        self.folder = folder
        self.sealed = sealed
        self.name = name
        self.requested: list[str] = []
        (folder / "runs").mkdir(parents=True)
        self.write_study()

    def write_study(self, **changes: Any) -> None:
        invocation = {
            "t": CREATED,
            "command": ["python", "-m", "harness", "-m", "gpus=1,2,4"],
            "code_version": SITE.code_version,
            "cluster": "atlas",
            "runs": self.requested,
            "arrays": [],
        }
        document = {"v": 1, "study": self.name, "created": CREATED, "invocations": [invocation], **changes}
        write_json(self.folder / "study.json", seals.sealed(document) if self.sealed else document)

    def add(
        self,
        spec: RunSpec,
        logs: Logs | None = None,
        result: Mapping[str, Any] | None = None,
        site: Mapping[str, Any] | None = None,
        finished: bool = True,
        attempt: int = 1,
    ) -> Path:
        """Write one run and return its folder. result, site: changes to RESULT and SITE."""
        run_dir = self.folder / "runs" / spec.run_id
        run_dir.mkdir(exist_ok=True)
        write_run(run_dir, spec, dataclasses.replace(SITE, **(site or {})))
        if logs is not None:
            write_logs(run_dir / f"attempt-{attempt}", spec, logs, self.sealed)
        if finished:
            write_result(run_dir, {**RESULT, "run_id": spec.run_id, "attempt": attempt, **(result or {})})
        if not self.sealed:
            for path in run_dir.rglob("*.json"):
                document = json.loads(path.read_text())
                if document.pop("crc", None) is not None:
                    write_json(path, document)
        self.requested.append(spec.run_id)
        self.write_study()
        return run_dir

    def attempts(self, spec: RunSpec, *attempts: Logs, finished: bool = True) -> Path:
        """Add a run with these attempts in order; the last one completes it unless `finished` is False."""
        for number, logs in enumerate(attempts, start=1):
            run_dir = self.add(spec, logs, attempt=number, finished=finished and number == len(attempts))
        return run_dir

    def completed(self, gpus: int = 1, seconds: float = 1.0, **changes: Any) -> Path:
        """Add a completed run whose measured blocks of 10 x 128 x gpus samples take `seconds` each."""
        return self.add(spec_of(gpus, **changes), Logs(block_seconds=[seconds] * 4))

    def verified(self, gpus: int, shown: Mapping[str, np.ndarray] | None = None, **changes: Any) -> Path:
        """Add a completed run with verify=true and these arrays in verify.npz; default: `arrays()`."""
        return self.add(spec_of(gpus, verify=True, **changes), Logs(verify=shown or arrays()))


def write_logs(attempt_dir: Path, spec: RunSpec, logs: Logs, sealed: bool = False) -> None:
    """Write one log per rank like a worker, and the files of the ranks' supervisors."""
    attempt_dir.mkdir(parents=True, exist_ok=True)
    if logs.begin is not None:
        begin = {"t": logs.begin, "job_id": "17"}
        write_json(attempt_dir / "begin.json", seals.sealed(begin) if sealed else begin)
    if logs.verify is not None:
        np.savez(attempt_dir / "verify.npz", **logs.verify)
    codes = [0] * spec.gpus if logs.exit_codes is None else logs.exit_codes
    for rank in range(spec.gpus):
        writer = TimedWriter(attempt_dir / f"events.rank{rank}.jsonl", rank, logs.begin or CREATED, sealed)
        _write_rank(writer, rank, spec, logs)
        writer.close()
        if rank < len(codes):
            sizes = {str(rank): writer.path.stat().st_size} if sealed else None
            rank_exits.write(attempt_dir, RankExit(rank, codes[rank], writer.t + 1.0, log_bytes=sizes))


class TimedWriter(EventWriter):
    """The harness's writer with a simulated clock: t, in unix seconds."""

    def __init__(self, path: Path, rank: int, t: float, sealed: bool = False) -> None:
        super().__init__(path, rank)
        self.path, self.t, self.checksums = path, t, sealed

    def _sealed(self, line: str) -> str:
        return super()._sealed(line) if self.checksums else line + "\n"

    def write_after(self, passed: float, ev: str, /, **values: Any) -> None:
        self.t += passed
        self.write(ev, t=self.t, **values)


def _write_rank(writer: TimedWriter, rank: int, spec: RunSpec, logs: Logs) -> None:
    per_node = spec.placement.ranks_per_node
    place = {"host": f"node{rank // per_node}", "machine": f"boot-{rank // per_node}", "device_id": f"GPU-{rank}"}
    writer.write_after(
        sum(logs.startup_seconds.values()),
        "start",
        world_size=spec.gpus if logs.world_size is None else logs.world_size,
        local_rank=rank % per_node,
        cores=64,
        cores_declared=64,
        threads=8,
        device=logs.device or spec.cluster.device,
        device_name=logs.device_name,
        parameters=_own(logs.parameters, rank),
        gradient_bytes=GRADIENT_BYTES,
        global_batch=spec.global_batch,
        batch_per_gpu=spec.batch_per_gpu,
        train_samples=50_000,
        versions=dict(logs.versions),
        startup_seconds=dict(logs.startup_seconds),
        **({"communication": logs.communication} if logs.later else {}),
        **({"energy_of": logs.energy[0].format(rank=rank)} if logs.energy else {}),
        **{**place, **_own(logs.start, rank)},
    )
    if logs.resume is not None:
        writer.write_after(0.0, "resume", **logs.resume)
    steps, samples = _write_blocks(writer, rank, spec, logs)
    if not logs.ends:
        return
    for probe, seconds in (("cached_batch", logs.cached_batch_seconds), ("no_sync", logs.no_sync_seconds)):
        if seconds is not None:
            writer.write_after(10 * seconds, "probe", probe=probe, n=10, seconds=10 * seconds)
    for number in range(max(map(len, logs.rounds.values()), default=0)):
        for probe, of_rounds in logs.rounds.items():
            if number < len(of_rounds):
                own = of_rounds[number]
                seconds = 5 * (own if isinstance(own, (int, float)) else own[rank])
                size = {"bytes": GRADIENT_BYTES} if probe == "allreduce" else {}
                writer.write_after(seconds, "probe", probe=probe, round=number, n=5, seconds=seconds, **size)
    if logs.probes is not None:
        writer.write_after(0.0, "probes", **logs.probes)
    for n_bytes, seconds in logs.allreduce.items():
        writer.write_after(5 * seconds, "probe", probe="allreduce", n=5, seconds=5 * seconds, bytes=n_bytes)
    seen = steps * spec.global_batch
    if logs.resources:
        writer.write_after(0.0, "resources", **logs.resources[rank])
    for what in logs.fallbacks:
        writer.write_after(0.0, "fallback", what=what)
    for back in logs.returns if rank == 0 else ():
        writer.write_after(0.0, "server_back", **back)
    if rank == 0 and logs.staleness is not None:
        writer.write_after(0.0, "staleness", **logs.staleness)
    if rank == 0 and logs.accuracy is not None:
        _write_evaluation(writer, spec, steps, logs.accuracy)
    checksum = 12345.5 if logs.checksums is None else logs.checksums[rank]
    end = {"steps": steps, "samples_seen": seen, "weights_checksum": checksum}
    if logs.later:
        end["samples"] = samples if logs.samples is None else _own(logs.samples, rank)
    writer.write_after(0.0, "end", **end)


def _write_blocks(writer: TimedWriter, rank: int, spec: RunSpec, logs: Logs) -> tuple[int, int]:
    """Write the blocks with the phases of the measuring loop. Return the steps that the run has done, and the samples
    that this rank consumed in the attempt."""
    first = logs.block_seconds[0] if logs.block_seconds else 0.0
    own = list(logs.block_seconds if isinstance(first, (int, float)) else logs.block_seconds[rank])
    n, warmup = spec.measure.block_steps, spec.measure.warmup_steps
    first_step = logs.resume["step"] if logs.resume else 0
    steps, consumed = max(first_step, warmup) + len(own) * n, 0
    gradients = _own(logs.gradients, rank) if logs.later else None
    if rank == 0 and first_step in logs.evaluations:
        _write_evaluation(writer, spec, first_step, logs.evaluations[first_step])
    measure = dataclasses.replace(spec.measure, steps=steps - warmup)
    protocol = Protocol(measure, first_step)
    while protocol.going:
        phase, step, n = protocol.block
        protocol.add(1.0)
        seconds = 9.0 if phase == "warmup" else own.pop(0)
        loss = 2.3 if phase == "warmup" else 1.0
        samples = n * spec.batch_per_gpu
        counts = {"n": n, "seconds": seconds, "samples": samples, **({"joules": logs.energy[1]} if logs.energy else {})}
        if (share := _own(logs.issued, rank)) is not None:
            counts |= {"issue_seconds": share * seconds, "first_issue_seconds": share * seconds / n}
        writer.write_after(seconds, "steps", phase=phase, step=step, **counts, loss=loss)
        consumed += samples
        if rank == 0 and step + n in logs.devices:
            writer.write_after(0.0, "device", step=step + n, **logs.devices[step + n])
        if step == first_step and gradients is not None:
            writer.write_after(0.0, "gradients", step=step, sum=gradients[0], magnitude=gradients[1])
        if step + n in logs.checkpoints:
            taken, size = logs.checkpoints[step + n], 5_268_688 if rank == 0 else None
            writer.write_after(taken, "checkpoint", step=step + n, why="interval", seconds=taken, bytes=size)
        if rank == 0 and step + n in logs.evaluations:
            _write_evaluation(writer, spec, step + n, logs.evaluations[step + n])
    if logs.fault is not None and rank == logs.fault[0]:
        writer.write_after(0.0, "fault", fault=spec.fault.name, step=logs.fault[1])
    return steps, consumed


def _write_evaluation(writer: TimedWriter, spec: RunSpec, steps: int, accuracy: float) -> None:
    scored = {"samples": 10_000, "correct": round(10_000 * accuracy), "accuracy": accuracy, "loss": 0.9, "seconds": 2.0}
    writer.write_after(2.0, "eval", step=steps, samples_seen=steps * spec.global_batch, **scored)


def _own(value: Any, rank: int) -> Any:
    return value[rank] if isinstance(value, list) else value
