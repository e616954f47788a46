"""Other people's programs, and how the harness is asked to measure each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from project import PROJECT

SCRIPTS = Path(__file__).parent / "scripts"
WORKLOADS, TORCH, TENSORFLOW = (PROJECT / ".envs" / name for name in ("workloads", "pytorch", "tensorflow"))
BATCH = ("--batch-size", "{batch_per_gpu}")
TORCHRUN = (
    *("--nnodes={nodes}", "--node-rank={node_rank}", "--nproc-per-node={gpus_per_node}"),
    *("--master-addr={master_addr}", "--master-port={master_port}"),
)


@dataclass(frozen=True)
class Program:
    """A training and how it is started.

    Attributes:
        command: what follows `--`.
        env: the environment that it needs.
        keys: of the harness.
        expected: entries of the event `workload`.
        stopped: how it ends, in the event `protocol`.
        gpus: the sizes to measure.
        trainer: it leaves its loop to a library, which ends it in its own way.
    """

    command: tuple[str, ...]
    env: Path
    keys: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict)
    stopped: str = "limit"
    gpus: tuple[int, ...] = (1, 2)
    trainer: bool = False

    @property
    def arguments(self) -> list[str]:
        """Arguments of `python -m harness`."""
        script = "workload=command" not in self.keys
        kind = ("workload=script", f"workload.python={self.env}") if script else ()
        return [*kind, *self.keys, "--", *self.command]


def hooked(step_of: str, **others: Any) -> dict[str, Any]:
    return {"method": "hooks", "step_of": step_of, "handed_out": 64, "accumulation": 1, **others}


def printed(pattern: str, env: Path, script: str, *arguments: str) -> Program:
    """A script whose output is read, one process per GPU."""
    keys = ("workload=command", f"workload.pattern={pattern}")
    command = (str(env / "bin" / "python"), "-u", script, *BATCH, *arguments)
    return Program(command, env, keys, {"method": "pattern"}, gpus=(1,))


PROGRAMS = {
    "lightning": Program(
        ("lightning_trainer.py", *BATCH, "--out", "{run_dir}/out"), WORKLOADS, expected=hooked("AdamW"), trainer=True
    ),
    "hf_trainer": Program(
        ("hf_trainer.py", *BATCH, "--out", "{run_dir}/out"), WORKLOADS, expected=hooked("AdamW"), trainer=True
    ),
    "hf_trainer, accumulating": Program(
        ("hf_trainer.py", *BATCH, "--accumulate", "4", "--out", "{run_dir}/out"),
        WORKLOADS,
        expected=hooked("AdamW", accumulation=4),
    ),
    "accelerate": Program(("accelerate_loop.py", *BATCH), WORKLOADS, expected=hooked("AdamW")),
    "deepspeed": Program(("deepspeed_zero1.py", *BATCH), WORKLOADS, expected=hooked("DeepSpeedZeroOptimizer")),
    "torchrun": Program(
        (str(TORCH / "bin" / "torchrun"), *TORCHRUN, "ddp_torchrun.py", *BATCH, "--output-dir", "{run_dir}"),
        TORCH,
        ("workload=command", "workload.launcher=own"),
        hooked("SGD"),
    ),
    "torchrun, started": Program(("ddp_torchrun.py", *BATCH), TORCH, ("workload.launcher=torchrun",), hooked("SGD")),
    "horovod": Program(("horovod_loop.py", *BATCH), TORCH, ("workload.launcher=mpirun",), hooked("SGD")),
    "accumulation": Program(("accumulation.py", *BATCH), TORCH, expected=hooked("SGD", accumulation=4)),
    "two optimisers": Program(("gan.py", *BATCH), TORCH, ("workload.step=Adam",), hooked("Adam")),
    "sys.exit": Program(
        ("sys_exit.py", *BATCH),
        TORCH,
        ("workload.stop=false",),
        hooked("SGD", handed_out=None, accumulation=None),
        stopped="script ended",
    ),
    "keras": Program(
        ("keras_fit.py", "--batch-size", "{global_batch}", "--replicas", "{gpus}"),
        TENSORFLOW,
        ("workload.processes_per_node=node",),
        {"method": "probe", "step_of": "step"},
    ),
    **{
        f"loop of {name}": Program(
            (f"loop_{name}.py", *BATCH),
            PROJECT / ".envs" / name,
            expected={"method": "probe", "step_of": "steps", "handed_out": 64, "accumulation": 1},
            gpus=(1,),
        )
        for name in ("tensorflow", "jax", "mxnet")
    },
    "lightning, its bar": printed("lightning", WORKLOADS, "lightning_trainer.py", "--bar", "--out", "{run_dir}/out"),
    "hf_trainer, its bar": printed("hf_trainer", WORKLOADS, "hf_trainer.py", "--out", "{run_dir}/out"),
}
