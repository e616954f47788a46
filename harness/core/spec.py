"""What one run is: `RunSpec`, the frozen value that crosses every wall, and its content hash `run_id`.

Standard library only, and no syntax newer than Python 3.8: this file is read on the login node, on the
compute node, and inside every framework's environment.
"""

from __future__ import annotations

import functools
import hashlib
import json
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional

from harness.core.optimizer_spec import OptimizerSpec
from harness.core.serialization import LATER, determining, from_plain, to_plain, write_json
from harness.core.strategies import info

SPEC_VERSION = 1
STRONG, WEAK = "strong", "weak"

# The framework that waits instead of computing: no figure of it is one of a real framework.
EMULATED = "emulated"

# As a value of the option `placement`, of strategies with parameter servers.
OWN_NODES = "own_nodes"
# Input pipelines. A configuration may leave the choice to the plan (`auto`); a spec names one of them.
HARNESS, FRAMEWORK, DEVICE, DALI = "harness", "framework", "device", "dali"
# As values of RunSpec.trace; nsys is the name of NVIDIA's command, too.
NO_TRACE, CHROME, NSYS = "none", "chrome", "nsys"


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a run sit. One rank drives one GPU (on a CPU machine: one share of the cores)."""

    nodes: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.nodes} x {self.ranks_per_node}"


@dataclass(frozen=True)
class DatasetSpec:
    """Which data set, in which form the network sees it.

    image_size: pixels of one side after the reader's resize (square images).
    mean, std: per channel, of pixel values scaled to 0..1.
    train_samples, test_samples: how many samples the synthetic reader makes; unused by the others.
    shuffle_buffer: of a data set in shards, samples among which each rank shuffles what it reads; 0 for the others.
    context: 0 for images. A sample of text is a sequence of so many tokens, each a byte, and `classes` is the size of
    the vocabulary; channels and image_size are 0 then, mean and std are empty.
    stands_for: of made samples in the place of a data set, that one's name; empty for all others.
    crop_pixels, crop_reflect: with `augment`, how far a crop lies from the image at most, and whether the image goes on
    there as in a mirror, or in black. alternating_flip: an image is flipped in every second epoch, by a coin for the
    first one (Jordan 2024, arXiv 2404.00498, section 3.6), and not by a coin each time.
    """

    name: str
    reader: str
    classes: int
    channels: int
    image_size: int
    mean: typing.Tuple[float, ...]
    std: typing.Tuple[float, ...]
    augment: bool = True
    train_samples: int = 0
    test_samples: int = 0
    shuffle_buffer: int = field(default_factory=int, metadata=LATER)
    context: int = field(default=0, metadata=LATER)
    stands_for: str = field(default="", metadata=LATER)
    crop_pixels: int = field(default=4, metadata=LATER)
    crop_reflect: bool = field(default=False, metadata=LATER)
    alternating_flip: bool = field(default=False, metadata=LATER)

    @property
    def size(self) -> int:
        """What a row of models/catalog.py is a function of: tokens of a sequence, or pixels of an image's side."""
        return self.context or self.image_size

    @property
    def sample_shape(self) -> typing.Tuple[int, ...]:
        """Of the bytes of one sample: (tokens,) or (height, width, channels)."""
        return (self.context,) if self.context else (self.image_size, self.image_size, self.channels)


@dataclass(frozen=True)
class InputSpec:
    """How samples come to a rank: `data.pipeline` and its options. Samples, order and augmentation are the same in all.

    pipeline: 'harness': NumPy, one thread; 'framework': the framework's own loader; 'device': all samples lie on the
    device, and are augmented there; 'dali': NVIDIA DALI, whose decoder and resize give slightly other pixel values.
    workers: processes or threads beside the training that make batches; 0: the rank itself, when it needs one.
    prefetch: batches that each worker makes ahead, with 'dali' all of them together; 0 without workers.
    pin: whether batches are copied to a GPU from page-locked memory, where the framework leaves the choice.
    samples: of the training split, with 'device'; else 0.
    """

    pipeline: str = HARNESS
    workers: int = 1
    prefetch: int = 4
    pin: bool = True
    samples: int = 0


@dataclass(frozen=True)
class MeasureSpec:
    """How long a run goes on and what it measures. Counts are optimiser steps, except where a name says otherwise.

    warmup_steps: run first, logged apart, never part of a throughput figure; more of them, up to warmup_limit_steps,
    until the step time is stationary. None: not more.
    steps: timed steps, in blocks of `block_steps` between fences; fewer where the relative half-width of the interval
    of the median step time is at most `precision` sooner. None: no fewer.
    probe_steps: steps in a block of a probe (cached batch, no synchronisation) after training; 0 turns probes off.
    probe_limit, probe_rounds: share of the run's time that the probes may take, and how often each is taken at most.
    evaluate_samples: test samples scored at the end; 0 turns evaluation off, -1 takes the whole test set.
    evaluate_every_samples: training samples, over all ranks, after which they are scored each time; 0: only at the end.
    evaluate_views: logits are means over so many views of a test image. 1: as it is; 2: and its mirror image; 6: and
    both moved by a pixel, two ways (harness/worker/test_time_augmentation.py).
    record: whether energy, memory, the device's state, network and files are recorded beside the time.
    """

    warmup_steps: int = 10
    steps: int = 200
    block_steps: int = 10
    probe_steps: int = 10
    evaluate_samples: int = -1
    evaluate_every_samples: int = field(default=0, metadata=LATER)
    warmup_limit_steps: Optional[int] = field(default=None, metadata=LATER)
    precision: Optional[float] = field(default=None, metadata=LATER)
    probe_limit: float = field(default=0.1, metadata=LATER)
    probe_rounds: int = field(default=20, metadata=LATER)
    record: bool = field(default=True, metadata=LATER)
    evaluate_views: int = field(default=1, metadata=LATER)

    @property
    def most_warmup_steps(self) -> int:
        return max(self.warmup_steps, self.warmup_limit_steps or 0)

    @property
    def most_steps(self) -> int:
        """Of the whole run, warm-up included."""
        return self.most_warmup_steps + self.steps

    @property
    def warms_until_stationary(self) -> bool:
        return self.most_warmup_steps > self.warmup_steps

    @property
    def fixed(self) -> bool:
        """Whether the number of steps is known beforehand: warmup_steps + steps."""
        return self.precision is None and not self.warms_until_stationary


@dataclass(frozen=True)
class CheckpointSpec:
    """interval_steps: the state is saved at the first end of a block after so many steps; 0: only when the run has to
    leave, and at the end of training."""

    interval_steps: int = 0


@dataclass(frozen=True)
class FaultSpec:
    """A failure on purpose, once per run (harness/worker/faults.py).

    name: none, kill_rank, kill_node, slow_rank or hang. step: before which optimiser step, from 0. rank: which rank, or
    the rank whose node. seconds: slow_rank only: the delay of each step from there on.
    """

    name: str = "none"
    step: int = 0
    rank: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class ClusterSpec:
    """What of the machine determines a measurement. Accounts, limits and paths do not, and are not here."""

    name: str
    device: str
    cpus_per_gpu: int
    gpu_type: Optional[str] = None
    partition: Optional[str] = None
    constraint: Optional[str] = None


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines one measurement, and nothing else.

    gpus: ranks in all. global_batch, batch_per_gpu: samples per optimiser step, over all ranks and per rank; where
    several ranks have one copy of the model between them, they train on the samples of all of them.
    environment: the framework environment as the configuration names it (not the path that it resolves to).
    env: environment variables set for every rank, such as NCCL_*.
    verify: whether rank 0 first shows that the network computes what it does in the other frameworks.
    trace: CHROME: after all that is measured, each rank writes a trace of `trace_steps` more steps; NSYS: NVIDIA's nsys
    profiles each rank from its start to its end, which is no measurement; NO_TRACE: neither.
    deterministic: whether the framework is held to algorithms that give the same bits in each run.
    """

    framework: str
    framework_options: Mapping[str, Any]
    environment: str
    strategy: str
    strategy_options: Mapping[str, Any]
    model: str
    dataset: DatasetSpec
    precision: str
    gpus: int
    placement: Placement
    scaling: str
    global_batch: int
    batch_per_gpu: int
    seed: int
    repeat: int
    optimizer: OptimizerSpec
    measure: MeasureSpec
    cluster: ClusterSpec
    env: Mapping[str, str] = field(default_factory=dict)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec, metadata=LATER)
    fault: FaultSpec = field(default_factory=FaultSpec, metadata=LATER)
    verify: bool = field(default_factory=bool, metadata=LATER)
    data: InputSpec = field(default_factory=InputSpec, metadata=LATER)
    trace: str = field(default=NO_TRACE, metadata=LATER)
    trace_steps: int = field(default=3, metadata=LATER)
    deterministic: bool = field(default=False, metadata=LATER)

    @functools.cached_property
    def run_id(self) -> str:
        """A readable name and 12 hex digits of SHA-256 over the canonical JSON: equal requests, equal ids.

        A field that came later is left out at its default, so that what was measured before it keeps its id.
        """
        text = json.dumps([SPEC_VERSION, determining(self)], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()[:12]
        return f"{self.framework}-{self.strategy}-{self.model}-{self.gpus}gpu-{digest}"

    @property
    def ranks_per_replica(self) -> int:
        """Ranks that have one copy of the model between them, and train on the same samples. 1: data parallelism."""
        option = info(self.strategy).ranks_option
        return 1 if option is None else int(self.strategy_options.get(option) or self.gpus)

    @property
    def replicas(self) -> int:
        """Copies of the model that train side by side, each on samples of its own. Neighbouring ranks are one: those of
        replica r are r * ranks_per_replica and the next."""
        return self.gpus // self.ranks_per_replica

    @property
    def batch_per_replica(self) -> int:
        """Samples of an optimiser step that a rank trains on."""
        return self.global_batch // self.replicas

    @property
    def microbatch(self) -> int:
        """Samples that go through the network at once: what BatchNorm takes its statistics from."""
        cut = self.strategy_options.get("microbatches", 1) if info(self.strategy).ranks_option else 1
        return self.batch_per_replica // int(cut)

    @property
    def server_nodes(self) -> int:
        """How many nodes are for parameter servers alone, beside those of the ranks."""
        if self.strategy_options.get("placement") != OWN_NODES:
            return 0
        return self.strategy_options["servers"] or self.placement.nodes

    def evaluates_after(self, steps: int) -> bool:
        """Whether the test samples are scored after so many steps, in the middle of training."""
        every = self.measure.evaluate_every_samples
        if not every or not 0 < steps < self.measure.most_steps:
            return False
        return steps * self.global_batch % every == 0


@dataclass(frozen=True)
class Site:
    """What a rank needs on this machine, and what does not change the measurement: never hashed.

    python: the interpreter of the framework's environment. data_root: folder of the data set, or None.
    project: folder that holds `harness` and `models`. code_version: git commit of it, '-dirty' when edited.
    oversubscribed: why the plan already knows that ranks share cores or GPUs, or None.
    shared_gpus: whether the plan knows that ranks share a GPU, so that gloo carries what NCCL refuses to.
    visible_gpus: GPUs that a local run may use, as CUDA_VISIBLE_DEVICES names them; None: the scheduler gives them.
    timeout_seconds: an attempt longer than this is ended.
    heartbeat_seconds: an attempt without any progress for so long is ended; None: never.
    signal_seconds: how long before the wall limit the scheduler tells the ranks to save and leave.
    max_requeues, max_restarts: how often the run is started again, from its last checkpoint, after it reached its wall
    limit, and after a rank failed. keep_checkpoint: whether the last one stays when the run is completed.
    container: what stands before `python` on a rank's command line; empty without a container.
    bind_cpus: whether each rank is kept to cores of its own; on Slurm, srun does that.
    stage_environment: 'tar', 'sbcast' where jobs unpack the environment on their nodes, else 'none'
    (harness/node/stage.py). link_gb_per_s, gpu_link_gb_per_s: nominal rate of a node's link to the others, and of a
    GPU's to those of its node, in 10^9 bytes per second of one direction; None: not known. peak_tflops: nominal peak of
    a GPU in 10^12 floating-point operations per second, by precision. The report compares with them, and nothing else
    uses them.
    """

    python: str
    data_root: Optional[str]
    project: str
    code_version: str
    oversubscribed: Optional[str]
    visible_gpus: Optional[typing.Tuple[str, ...]]
    timeout_seconds: float
    heartbeat_seconds: Optional[float] = None
    signal_seconds: float = 60.0
    max_requeues: int = 0
    max_restarts: int = 0
    keep_checkpoint: bool = False
    container: typing.Tuple[str, ...] = ()
    bind_cpus: bool = False
    link_gb_per_s: Optional[float] = None
    gpu_link_gb_per_s: Optional[float] = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    stage_environment: str = "none"
    shared_gpus: bool = False


def write_run(run_dir: Path, spec: RunSpec, site: Site) -> Path:
    """Writes `spec.json`, by rename, so that a reader sees all of it or nothing."""
    path = run_dir / "spec.json"
    document = {"v": SPEC_VERSION, "run_id": spec.run_id, "spec": to_plain(spec), "site": to_plain(site)}
    write_json(path, document)
    return path


def read_run(run_dir: Path) -> typing.Tuple[RunSpec, Site]:
    """Reads `spec.json`. Raises ValueError that names a file which is not one of ours, OSError where there is none."""
    path = Path(run_dir) / "spec.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("v") != SPEC_VERSION:
            version = document.get("v") if isinstance(document, dict) else None
            raise ValueError(f"version {version!r}, this code reads version {SPEC_VERSION}")
        return from_plain(RunSpec, document["spec"]), from_plain(Site, document["site"])
    except (ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is not a run's spec.json: {error}") from None
