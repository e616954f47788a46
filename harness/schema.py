"""The schema of the configuration: names, types and allowed values. Plain dataclasses; `config.py` gives them to Hydra.

What each key means stands beside its default in `conf/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from models import catalog

MISSING: Any = "???"  # as OmegaConf spells "conf/ must give it"


class Scaling(Enum):
    strong = "strong"
    weak = "weak"


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Device(Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Scheduler(Enum):
    local = "local"
    slurm = "slurm"
    allocation = "allocation"


class GpuOption(Enum):
    gres = "gres"
    gpus_per_node = "gpus_per_node"


class Retry(Enum):
    failed = "failed"
    none = "none"
    all = "all"


class LrRule(Enum):
    constant = "constant"
    linear = "linear"
    sqrt = "sqrt"


class OptimizerName(Enum):
    sgd = "sgd"
    adam = "adam"
    lars = "lars"


class Baseline(Enum):
    plain = "plain"
    wrapped = "wrapped"
    both = "both"


class Controller(Enum):
    gloo = "gloo"
    mpi = "mpi"


class Compress(Enum):
    none = "none"
    fp16 = "fp16"
    bf16 = "bf16"
    powersgd = "powersgd"


# Made by a call, since a name cannot begin with a digit.
Schedule = Enum("Schedule", {"1f1b": "1f1b", "gpipe": "gpipe"})


@dataclass
class PyTorchOptions:
    compile: bool = False
    channels_last: bool = True


@dataclass
class TensorFlowOptions:
    jit_compile: bool = False


@dataclass
class NoOptions:
    pass


@dataclass
class BucketOptions:
    bucket_mb: float | None = None


@dataclass
class AllreduceOptions(BucketOptions):
    overlap: bool = True
    compress: Compress = Compress.none
    powersgd_rank: int = 4


@dataclass
class LocalSgdOptions:
    sync_every: int = 8


@dataclass
class PipelineOptions:
    stages: int | None = None
    microbatches: int = 4
    schedule: Schedule = Schedule["1f1b"]


@dataclass
class TensorOptions:
    degree: int | None = None


@dataclass
class ServerOptions:
    servers: int | None = None


@dataclass
class SspOptions(ServerOptions):
    staleness: int = 2


@dataclass
class HorovodOptions:
    controller: Controller = Controller.gloo
    compress: Compress = Compress.none


# The options that a framework or a strategy takes: conf/framework/<name>.yaml and conf/strategy/<name>.yaml.
FRAMEWORK_OPTIONS: dict[str, type] = {
    "pytorch": PyTorchOptions,
    "tensorflow": TensorFlowOptions,
    "keras": TensorFlowOptions,
    "mxnet": NoOptions,
    "jax": NoOptions,
}
STRATEGY_OPTIONS: dict[str, type] = {
    "plain": NoOptions,
    "allreduce": AllreduceOptions,
    "hierarchical": BucketOptions,
    "hybrid": BucketOptions,
    "fsdp": NoOptions,
    "zero1": BucketOptions,
    "local_sgd": LocalSgdOptions,
    "pipeline": PipelineOptions,
    "tensor": TensorOptions,
    "horovod": HorovodOptions,
    "mpi": NoOptions,
    "ps_sync": ServerOptions,
    "ps_async": ServerOptions,
    "ps_mixed": ServerOptions,
    "ssp": SspOptions,
}


@dataclass
class Framework:
    name: str = MISSING
    environment: str = MISSING
    strategies: list[str] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=lambda: [catalog.IMAGES])
    optimizers: list[str] = field(default_factory=lambda: [OptimizerName.sgd.name])
    without: list[str] = field(default_factory=list)
    options: Any = field(default_factory=dict)


@dataclass
class Strategy:
    name: str = MISSING
    options: Any = field(default_factory=dict)


@dataclass
class Model:
    name: str = MISSING


@dataclass
class Dataset:
    name: str = MISSING
    reader: str = MISSING
    classes: int = MISSING
    channels: int = MISSING
    image_size: int = MISSING
    mean: list[float] = MISSING
    std: list[float] = MISSING
    augment: bool = True
    train_samples: int = 0
    test_samples: int = 0
    context: int = 0


@dataclass
class Container:
    runtime: str | None = None
    image: str | None = None
    args: list[str] = field(default_factory=list)


@dataclass
class Cluster:
    name: str = MISSING
    scheduler: Scheduler = MISSING
    device: Device = Device.auto
    gpus_per_node: int | None = None
    cpus_per_gpu: int | None = None
    timeout_minutes: float = 30.0
    signal_seconds: int = 60
    gres: str | None = None
    gpu_option: GpuOption = GpuOption.gres
    gpu_type: str | None = None
    gpu_memory_gb: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    memory_per_node: str | None = None
    exclusive: bool = False
    array_parallelism: int | None = None
    max_submit: int | None = None
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    sbatch_args: dict[str, Any] = field(default_factory=dict)
    srun_args: list[str] = field(default_factory=list)
    mpi: str | None = None
    container: Container = field(default_factory=Container)
    env: dict[str, str] = field(default_factory=dict)
    bind_cpus: bool = False


@dataclass
class Measure:
    warmup_steps: int = MISSING
    steps: int = MISSING
    block_steps: int = MISSING
    probe_steps: int = MISSING
    evaluate_samples: int = MISSING
    evaluate_every_samples: int = 0


@dataclass
class Optimizer:
    name: OptimizerName = OptimizerName.sgd
    lr: float = MISSING
    momentum: float = MISSING
    weight_decay: float = MISSING
    nesterov: bool = MISSING
    lr_rule: LrRule = MISSING
    lr_batch: int = MISSING
    warmup_steps: int = MISSING
    beta1: float = MISSING
    beta2: float = MISSING
    epsilon: float = MISSING
    trust: float = MISSING


@dataclass
class Checkpoint:
    interval_steps: int = 0
    keep: bool = False
    max_requeues: int = 1
    max_restarts: int = 0


@dataclass
class Fault:
    name: str = MISSING
    step: int = 0
    rank: int = 0
    seconds: float = 0.0


@dataclass
class Data:
    root: str = MISSING
    check: bool = True
    shuffle_buffer: int = 2048


@dataclass
class Config:
    """One point of a sweep, as conf/config.yaml composes it; its comments say what each key means."""

    study: str = MISSING
    results: str = MISSING
    data: Data = field(default_factory=Data)
    gpus: int = MISSING
    scaling: Scaling = MISSING
    batch: int = MISSING
    precision: Precision = MISSING
    seed: int = MISSING
    repeat: int = MISSING
    optimizer: Optimizer = field(default_factory=Optimizer)
    framework: Framework = field(default_factory=Framework)
    strategy: Strategy = field(default_factory=Strategy)
    model: Model = field(default_factory=Model)
    dataset: Dataset = field(default_factory=Dataset)
    cluster: Cluster = field(default_factory=Cluster)
    measure: Measure = field(default_factory=Measure)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    fault: Fault = field(default_factory=Fault)
    heartbeat: float | None = None
    baseline: Baseline = Baseline.wrapped
    skip_unsupported: bool = False
    verify: bool = False
    retry: Retry = Retry.failed
    wait: bool = True
    pack: bool = False
    budget_node_hours: float | None = None
    target_accuracy: float | None = None
    plan_only: bool = False
