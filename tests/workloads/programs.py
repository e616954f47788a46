"""Other people's programs, and how the harness is asked to measure each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from project import PROJECT

SCRIPTS = Path(__file__).parent / "scripts"
WORKLOADS, TORCH, TENSORFLOW, JAX = (PROJECT / ".envs" / name for name in ("workloads", "pytorch", "tensorflow", "jax"))
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
        nodes: also measured on two nodes of Slurm.
    """

    command: tuple[str, ...]
    env: Path
    keys: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict)
    stopped: str = "limit"
    gpus: tuple[int, ...] = (1, 2)
    trainer: bool = False
    nodes: bool = False

    @property
    def arguments(self) -> list[str]:
        """Arguments of `python -m harness`."""
        script = "workload=command" not in self.keys
        kind = ("workload=script", f"workload.python={self.env}") if script else ()
        return [*kind, *self.keys, "--", *self.command]


def hooked(step_of: str, **others: Any) -> dict[str, Any]:
    return {"method": "hooks", "step_of": step_of, "handed_out": 64, "accumulation": 1, **others}


def marked(env: Path, script: str, gpus: tuple[int, ...] = (1, 2)) -> Program:
    """A script that calls the probe once per step with each batch."""
    expected = {"method": "probe", "step_of": "steps", "handed_out": 64, "accumulation": 1}
    return Program((script, *BATCH), env, expected=expected, gpus=gpus)


def called_back(script: str) -> Program:
    """A script with the callback for its library."""
    expected = {"method": "probe", "step_of": "step", "handed_out": 64, "accumulation": 1}
    return Program((script, *BATCH, "--probe", "--out", "{run_dir}/out"), WORKLOADS, expected=expected, trainer=True)


def printed(pattern: str, env: Path, script: str, *arguments: str) -> Program:
    """A script whose output is read, one process per GPU."""
    keys = ("workload=command", f"workload.pattern={pattern}")
    command = (str(env / "bin" / "python"), "-u", script, *BATCH, *arguments)
    return Program(command, env, keys, {"method": "pattern"}, gpus=(1,))


PROGRAMS = {
    "lightning": Program(
        ("lightning_trainer.py", *BATCH, "--out", "{run_dir}/out"),
        WORKLOADS,
        expected=hooked("AdamW"),
        trainer=True,
        nodes=True,
    ),
    "hf_trainer": Program(
        ("hf_trainer.py", *BATCH, "--out", "{run_dir}/out"),
        WORKLOADS,
        expected=hooked("AdamW"),
        trainer=True,
        nodes=True,
    ),
    "hf_trainer, accumulating": Program(
        ("hf_trainer.py", *BATCH, "--accumulate", "4", "--out", "{run_dir}/out"),
        WORKLOADS,
        expected=hooked("AdamW", accumulation=4),
    ),
    "lightning, its callback": called_back("lightning_trainer.py"),
    "hf_trainer, its callback": called_back("hf_trainer.py"),
    "accelerate": Program(("accelerate_loop.py", *BATCH), WORKLOADS, expected=hooked("AdamW")),
    "accelerate, started": Program(
        ("accelerate_loop.py", *BATCH), WORKLOADS, ("workload.launcher=accelerate",), hooked("AdamW"), nodes=True
    ),
    "deepspeed": Program(("deepspeed_zero1.py", *BATCH), WORKLOADS, expected=hooked("DeepSpeedZeroOptimizer")),
    "deepspeed, started": Program(
        ("deepspeed_zero1.py", *BATCH),
        WORKLOADS,
        ("workload.launcher=deepspeed",),
        hooked("DeepSpeedZeroOptimizer"),
        nodes=True,
    ),
    "torchrun": Program(
        (str(TORCH / "bin" / "torchrun"), *TORCHRUN, "ddp_torchrun.py", *BATCH, "--output-dir", "{run_dir}"),
        TORCH,
        ("workload=command", "workload.launcher=own"),
        hooked("SGD"),
        nodes=True,
    ),
    "torchrun, started": Program(
        ("ddp_torchrun.py", *BATCH), TORCH, ("workload.launcher=torchrun",), hooked("SGD"), nodes=True
    ),
    "horovod": Program(("horovod_loop.py", *BATCH), TORCH, ("workload.launcher=mpirun",), hooked("SGD"), nodes=True),
    "accumulation": Program(("accumulation.py", *BATCH), TORCH, expected=hooked("SGD", accumulation=4), nodes=True),
    "two optimisers": Program(("gan.py", *BATCH), TORCH, ("workload.step=Adam",), hooked("Adam"), nodes=True),
    "sys.exit": Program(
        ("sys_exit.py", *BATCH),
        TORCH,
        # A block's time is that of its slowest rank, so jitter at the ends of short ones would count.
        ("workload.stop=false", "measure.block_steps=40"),
        hooked("SGD", handed_out=None, accumulation=None),
        stopped="script ended",
        nodes=True,
    ),
    "keras": Program(
        ("keras_fit.py", "--batch-size", "{global_batch}", "--replicas", "{gpus}"),
        TENSORFLOW,
        ("workload.processes_per_node=node",),
        {"method": "probe", "step_of": "step"},
    ),
    "keras, several processes": Program(
        ("keras_fit.py", "--batch-size", "{global_batch}", "--together", "{run_dir}"),
        TENSORFLOW,
        expected={"method": "probe", "step_of": "step"},
        gpus=(2,),
        nodes=True,
    ),
    "loop of tensorflow": marked(TENSORFLOW, "loop_tensorflow.py", gpus=(1,)),
    "loop of jax": replace(marked(JAX, "loop_jax.py"), nodes=True),
    "loop of mxnet": marked(PROJECT / ".envs" / "mxnet", "loop_mxnet.py", gpus=(1,)),
    "lightning, its bar": printed("lightning", WORKLOADS, "lightning_trainer.py", "--bar", "--out", "{run_dir}/out"),
    "hf_trainer, its bar": printed("hf_trainer", WORKLOADS, "hf_trainer.py", "--out", "{run_dir}/out"),
    "deepspeed, its log": printed("deepspeed", WORKLOADS, "deepspeed_zero1.py", "--log"),
}
# Mistakes in a script, and a part of what is said.
REFUSED = {
    "two optimisers": (
        Program(("gan.py", *BATCH), TORCH),
        "so what one training step is cannot be known; seen: RMSprop (2 steps), Adam",
    ),
    "jax, each alone": (
        Program(("loop_jax.py", *BATCH, "--alone"), JAX),
        "2 processes each train alone: no library for distributed training is initialised in the script",
    ),
    "keras, other replicas": (
        replace(
            PROGRAMS["keras"], command=("keras_fit.py", "--batch-size", "{global_batch}", "--replicas", "3"), gpus=(2,)
        ),
        "TensorFlow's strategy has 3 replicas, the run has 2 GPUs",
    ),
}
