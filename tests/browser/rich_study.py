"""A study with an example of everything that the page can show."""

from __future__ import annotations

from pathlib import Path

from environment_files import write_environment
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from harness.core.spec import STRONG, FaultSpec, Placement
from harness.study import outcome

WOBBLE = (1.0, 1.012, 0.991, 1.004, 0.996, 1.008)
# Seconds per step on one GPU, and seconds that each doubling adds.
SERIES = {
    ("pytorch", "allreduce"): (0.100, 0.006),
    ("pytorch", "fsdp"): (0.104, 0.009),
    ("jax", "allreduce"): (0.092, 0.011),
    ("tensorflow", "horovod"): (0.118, 0.007),
}
SIZES = (1, 2, 4, 8, 12)


def rich_study(folder: Path) -> StudyBuilder:
    """Four series of five sizes, three runs each, with rising accuracies; another model; failed, missing, unfinished,
    resumed and damaged runs; an oversubscribed point."""
    study = StudyBuilder(folder, "resnet-on-atlas")
    for (framework, strategy), (alone, slope) in SERIES.items():
        for gpus in SIZES:
            for seed in range(3):
                _scaled(study, framework, strategy, gpus, seed, alone + slope * (gpus.bit_length() - 1))
    for gpus in (1, 2, 4):
        study.add(spec_of(gpus, model="resnet110", scaling=STRONG, global_batch=256, batch_per_gpu=256 // gpus), Logs())
    shared = {"oversubscribed": "8 ranks share 4 GPUs"}
    study.add(spec_of(8, model="resnet110", scaling=STRONG, global_batch=256, batch_per_gpu=32), Logs(), result=shared)
    _troubled(study)
    return study


def _scaled(study: StudyBuilder, framework: str, strategy: str, gpus: int, seed: int, step: float) -> None:
    nodes = max(1, gpus // 4)
    own = [step * w * (1 + 0.006 * (seed - 1)) for w in WOBBLE]
    no_sync = [0.002 + SERIES[framework, strategy][0] * w for w in WOBBLE]
    probes = {"full": own, "cached_batch": [s * 0.99 for s in own], "no_sync": no_sync}
    if (framework, strategy) == ("pytorch", "allreduce"):
        probes["one_rank"] = [s + 0.001 for s in no_sync]
    if gpus > 1:
        probes["allreduce"] = [0.012 * w for w in WOBBLE]
    measured = [10 * s for s in own]
    learned = {10 + 10 * i: 0.5 + 0.06 * i + 0.004 * seed - 0.002 * gpus for i in range(1, 6)}
    logs = Logs(block_seconds=measured, rounds=probes, accuracy=0.86 + 0.004 * seed - 0.002 * gpus, evaluations=learned)
    spec = spec_of(gpus, framework=framework, strategy=strategy, seed=seed, placement=Placement(nodes, gpus // nodes))
    run_dir = study.add(spec, logs, result={"stderr_tail": ["step 60 of 60", f"done in {60 * step:.1f} s"]})
    own = {"NCCL_IB_DISABLE": "1"} if seed == 2 else {}
    write_environment(run_dir, host=f"node{seed}", variables={"SLURM_NTASKS": str(gpus), **own})


def _troubled(study: StudyBuilder) -> None:
    tail = ["[rank 3] loading the batch", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"]
    failed = {"status": "failed", "reason": "rank 3 ended with exit code 1", "failed_rank": 3, "exit_code": 1}
    study.add(spec_of(16, placement=Placement(4, 4)), Logs(), result={**failed, "stderr_tail": tail})
    running = spec_of(16, strategy="fsdp", placement=Placement(4, 4))
    run_dir = study.add(running, Logs(block_seconds=[1.0], ends=False), finished=False)
    write_environment(run_dir, host="node9", cores=48)
    for rank in (0, 13):
        log = run_dir / "attempt-1" / f"stderr.rank{rank}"
        log.write_text(f"\x1b[33mwarning\x1b[0m from rank {rank}\nstill waiting\n")
    study.requested.append("pytorch-allreduce-resnet44-32gpu-000000000000")
    fault = spec_of(2, fault=FaultSpec("kill_rank", 35))
    first = Logs(block_seconds=[1.0, 1.0], checkpoints={30: 1.0}, fault=(0, 35), ends=False, exit_codes=[-9, -9])
    twice = study.attempts(fault, first, Logs(block_seconds=[1.0], resume=resume(30, 1), begin=CREATED + 76))
    outcome.write_restart(twice / "attempt-1", outcome.BY_FAILURE, "rank 0 was ended by signal 9 (SIGKILL)", 30)
    torn = study.add(spec_of(1, seed=9), Logs())
    with (torn / "attempt-1" / "events.rank0.jsonl").open("a") as log:
        log.write('{"ev": "steps", "step"')
    study.write_study()
