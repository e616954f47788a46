"""Schema of the configuration: names, types and allowed values, as plain dataclasses.

Comments next to the defaults in `conf/` explain each key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from harness.config.optimizer_schema import MISSING, Optimizer
from harness.config.workload_schema import Workload
from harness.core.serialization import LATER
from harness.core.strategies import STRATEGIES


class Scaling(Enum):
    strong = "strong"
    weak = "weak"


class Precision(Enum):
    fp32 = "fp32"
    tf32 = "tf32"
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


# Functional syntax, because a Python name cannot begin with a digit.
Schedule = Enum("Schedule", {"1f1b": "1f1b", "gpipe": "gpipe"})
# Nor contain a hyphen. These are the modes of torch.compile.
_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
CompileMode = Enum("CompileMode", {name: name for name in _COMPILE_MODES})  # type: ignore[misc]


@dataclass
class PyTorchOptions:
    compile: bool = False
    # true, false or auto. A Union, because OmegaConf does not accept true and false as names of an Enum.
    channels_last: bool | str = "auto"
    fused: bool = field(default=False, metadata=LATER)
    cuda_graph: bool = field(default=False, metadata=LATER)
    half_weights: bool = field(default=False, metadata=LATER)
    compile_mode: CompileMode = field(default=CompileMode["default"], metadata=LATER)


@dataclass
class TensorFlowOptions:
    jit_compile: bool = False


@dataclass
class EmulatedOptions:
    compute_ms: float = 20.0
    batch_ref: int | None = None
    backward_fraction: float = 0.5
    stall_ms: float = 0.0
    straggler_rank: int = 0
    straggler_ms: float = 0.0
    jitter: float = 0.0
    message_mb: float | None = None
    latency_ms: float = 0.0
    bandwidth_mb: float | None = None
    common_jitter: float = field(default=0.0, metadata=LATER)
    late_probability: float = field(default=0.0, metadata=LATER)
    late_ms: float = field(default=0.0, metadata=LATER)


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
    first_bucket_mb: float | None = field(default=None, metadata=LATER)
    bucket_view: bool = field(default=True, metadata=LATER)
    static_graph: bool = field(default=False, metadata=LATER)


@dataclass
class LocalSgdOptions:
    sync_every: int = 8


class ServerPlacement(Enum):
    beside = "beside"
    own_nodes = "own_nodes"


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
    placement: ServerPlacement = field(default=ServerPlacement.beside, metadata=LATER)


@dataclass
class SspOptions(ServerOptions):
    staleness: int = 2


@dataclass
class HorovodOptions:
    controller: Controller = Controller.gloo
    compress: Compress = Compress.none
    hierarchical: bool = False
    fusion_mb: float | None = field(default=None, metadata=LATER)
    cycle_ms: float | None = field(default=None, metadata=LATER)
    autotune: bool = field(default=False, metadata=LATER)


StageEnvironment = Enum("StageEnvironment", ["none", "tar", "sbcast"])
# Options of each framework and strategy: conf/framework/<name>.yaml and conf/strategy/<name>.yaml.
FRAMEWORK_OPTIONS: dict[str, type] = {
    "pytorch": PyTorchOptions,
    "tensorflow": TensorFlowOptions,
    "keras": TensorFlowOptions,
    "mxnet": NoOptions,
    "jax": NoOptions,
    "emulated": EmulatedOptions,
}
STRATEGY_OPTIONS: dict[str, type] = {
    **dict.fromkeys(STRATEGIES, NoOptions),
    "allreduce": AllreduceOptions,
    "hierarchical": BucketOptions,
    "hybrid": BucketOptions,
    "zero1": BucketOptions,
    "local_sgd": LocalSgdOptions,
    "pipeline": PipelineOptions,
    "tensor": TensorOptions,
    "horovod": HorovodOptions,
    "ps_sync": ServerOptions,
    "ps_async": ServerOptions,
    "ps_mixed": ServerOptions,
    "ssp": SspOptions,
}


@dataclass
class Framework:
    name: str = MISSING
    environment: str = MISSING
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
    crop_pixels: int = 4
    crop_reflect: bool = False
    alternating_flip: bool = False


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
    link_gb_per_s: float | None = None
    gpu_link_gb_per_s: float | None = None
    peak_tflops: dict[str, float] = field(default_factory=dict)
    memory_gb_per_s: float | None = None
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
    stage_environment: StageEnvironment = StageEnvironment.none
    stage_folder: str | None = None
    container: Container = field(default_factory=Container)
    env: dict[str, str] = field(default_factory=dict)
    secret_env: list[str] = field(default_factory=list)
    bind_cpus: bool = False


@dataclass
class Measure:
    warmup_steps: int = MISSING
    steps: int = MISSING
    block_steps: int = MISSING
    probe_steps: int = MISSING
    evaluate_samples: int = MISSING
    evaluate_every_samples: int = 0
    evaluate_views: int = 1
    warmup_limit_steps: int | None = None
    precision: float | None = None
    probe_limit: float = 0.1
    probe_rounds: int = 20
    record: bool = True


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


class Source(Enum):
    real = "real"
    synthetic = "synthetic"
    both = "both"


class Pipeline(Enum):
    auto = "auto"
    harness = "harness"
    framework = "framework"
    device = "device"
    dali = "dali"


@dataclass
class Data:
    source: Source = Source.real
    root: str = MISSING
    check: bool = True
    pipeline: Pipeline = Pipeline.auto
    workers: int = 1
    prefetch: int = 4
    pin: bool = True
    shuffle_buffer: int = 2048


@dataclass
class Config:
    """One point of a sweep, as composed from conf/config.yaml, whose comments explain each key."""

    study: str = MISSING
    results: str = MISSING
    data: Data = field(default_factory=Data)
    gpus: int = MISSING
    scaling: Scaling = MISSING
    batch: int = MISSING
    precision: Precision = MISSING
    seed: int = MISSING
    repeat: int = MISSING
    repeats: int | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    workload: Workload = field(default_factory=Workload)
    framework: Framework = field(default_factory=Framework)
    strategy: Strategy = field(default_factory=Strategy)
    model: Model = field(default_factory=Model)
    dataset: Dataset = field(default_factory=Dataset)
    cluster: Cluster = field(default_factory=Cluster)
    measure: Measure = field(default_factory=Measure)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    fault: Fault = field(default_factory=Fault)
    # A number or 'auto'. OmegaConf takes no int for a float in a Union.
    heartbeat: float | int | str | None = None
    baseline: Baseline = Baseline.wrapped
    skip_unsupported: bool = False
    verify: bool = False
    deterministic: bool = False
    # true, false or nsys. A Union, because OmegaConf does not accept true and false as names of an Enum.
    trace: bool | str = False
    trace_steps: int = 3
    retry: Retry = Retry.failed
    wait: bool = True
    pack: bool = False
    budget_node_hours: float | None = None
    target_accuracy: float | None = None
    plan_only: bool = False
