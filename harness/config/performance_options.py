"""Options that make a step faster (docs/frameworks.md), and their unsupported combinations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.config.schema import Compress, Config
from harness.core import gpu_types, strategies
from harness.core.strategies import StrategyInfo

# Horovod's environment variables, by option.
KNOBS = {"fusion_mb": "HOROVOD_FUSION_THRESHOLD", "cycle_ms": "HOROVOD_CYCLE_TIME", "autotune": "HOROVOD_AUTOTUNE"}
# EAGER_STEPS in harness/worker/pytorch/graphs.py, plus one step that runs the graph.
GRAPH_WARMUP_STEPS = 12
AUTO = "auto"
# Modes of torch.compile that use CUDA graphs, and those that benchmark kernels.
GRAPH_MODES = ("reduce-overhead", "max-autotune")
TUNED_MODES = ("max-autotune", "max-autotune-no-cudagraphs")
# torch.compile splits the graph of DistributedDataParallel after a first bucket of this size.
FIRST_COMPILED_BUCKET_MB = 1


def unsupported(config: Config) -> str | None:
    """Return why a requested option is unsupported, or None."""
    return (
        _channels_last(config)
        or _horovod(config)
        or _fused(config)
        or _half_weights(config)
        or _cuda_graph(config)
        or _compile(config)
        or _compile_mode(config)
    )


def resolved(options: Any, precision: str, device: str) -> Any:
    """Return the framework's options with `auto` resolved, so that the run_id is that of concrete values.

    channels_last: tensor cores and oneDNN want NHWC; cuDNN's fp32 kernels are faster in NCHW (NVIDIA's
    DeepLearningExamples train ResNet-50 so).
    """
    if getattr(options, "channels_last", None) != AUTO:
        return options
    return replace(options, channels_last=device == "cpu" or precision != "fp32")


def became(config: Config, device: str) -> str:
    """Return a sentence for the plan about how `auto` was resolved; empty on CPUs, where it never differs."""
    options = config.framework.options
    if getattr(options, "channels_last", None) != AUTO or device == "cpu" or config.dataset.context:
        return ""
    name, value = config.precision.name, resolved(options, config.precision.name, device).channels_last
    asked = "framework.options.channels_last=auto"
    return f"{asked} is {str(value).lower()} with precision={name} on GPUs: images as {'NHWC' if value else 'NCHW'}"


def on_device(config: Config, device: str) -> str | None:
    """Return why the device does not support the request, or None."""
    precision = config.precision.name
    if device != "cuda":
        if precision == "fp16":
            return "precision=fp16 needs a GPU; on device cpu take fp32 or bf16"
        if precision == "tf32":
            return "precision=tf32 needs the tensor cores of a GPU; on device cpu take fp32 or bf16"
        if getattr(config.framework.options, "cuda_graph", False):
            return "framework.options.cuda_graph=true needs a GPU; on device cpu leave it at false"
        if (mode := _mode(config)) in GRAPH_MODES:
            return (
                f"framework.options.compile_mode={mode} uses CUDA graphs, which need a GPU; on device cpu take "
                "default or max-autotune-no-cudagraphs"
            )
    known = gpu_types.capability(config.cluster.gpu_type)
    if device == "cuda" and precision in ("bf16", "tf32") and known is not None and known < gpu_types.AMPERE:
        return (
            f"precision={precision} with cluster.gpu_type={config.cluster.gpu_type}: GPUs before Ampere have no tensor "
            "cores for it; take fp16, or fp32"
        )
    return None


def _channels_last(config: Config) -> str | None:
    value = getattr(config.framework.options, "channels_last", AUTO)
    if value in (True, False, AUTO):
        return None
    return f"framework.options.channels_last={value}: give true, false or auto"


def _horovod(config: Config) -> str | None:
    if config.strategy.name != "horovod":
        return None
    options = config.strategy.options
    for option, variable in KNOBS.items():
        value = getattr(options, option)
        if value is not None and value is not False and variable in config.cluster.env:
            return (
                f"strategy.options.{option}={value} and cluster.env.{variable}={config.cluster.env[variable]} both set "
                "it; leave one of the two out"
            )
    return None


def _fused(config: Config) -> str | None:
    if not getattr(config.framework.options, "fused", False):
        return None
    if config.optimizer.name.name == "lars":
        return "framework.options.fused=true is for optimizer.name=sgd and adam; torch has no fused lars"
    if not strategies.info(config.strategy.name).own_step:
        return (
            f"framework.options.fused=true is not offered with strategy '{config.strategy.name}', which divides the "
            f"step or leaves it to servers; supported with: {_listed(lambda row: row.own_step)}"
        )
    return None


def _half_weights(config: Config) -> str | None:
    framework, strategy = config.framework.options, config.strategy
    if not getattr(framework, "half_weights", False):
        return None
    asked = "framework.options.half_weights=true"
    if config.precision.name != "fp16":
        return f"{asked} is for precision=fp16, and precision={config.precision.name} was asked for"
    if config.optimizer.name.name != "sgd":
        return f"{asked} is for optimizer.name=sgd: squares of gradients, which adam keeps, are below the range of fp16"
    if not framework.fused:
        return f"{asked} needs framework.options.fused=true, whose step computes in fp32"
    if not strategies.info(strategy.name).fp16_gradients:
        offered = _listed(lambda row: row.fp16_gradients)
        return f"{asked} is not offered with strategy '{strategy.name}'; supported with: {offered}"
    if getattr(strategy.options, "compress", Compress.none) != Compress.none:
        return f"{asked} needs strategy.options.compress=none: gradients are sent in fp16 already"
    if config.dataset.context:
        return f"{asked} is for images; the sums of a transformer's layers would leave the range of fp16"
    return None


def _cuda_graph(config: Config) -> str | None:
    framework, strategy = config.framework.options, config.strategy
    if not getattr(framework, "cuda_graph", False):
        return None
    asked = "framework.options.cuda_graph=true"
    if not strategies.info(strategy.name).cuda_graph:
        offered = _listed(lambda row: row.cuda_graph)
        return f"{asked} is not offered with strategy '{strategy.name}'; supported with: {offered}"
    if not framework.fused:
        return f"{asked} needs framework.options.fused=true, whose step reads the learning rate from the device"
    if framework.compile:
        return f"{asked} is not offered with framework.options.compile=true, which may compile anew at any step"
    if strategy.name == "allreduce" and (not strategy.options.overlap or strategy.options.compress != Compress.none):
        return f"{asked} needs strategy.options.overlap=true and compress=none: what replaces them runs on the host"
    if config.measure.warmup_steps < GRAPH_WARMUP_STEPS:
        return (
            f"{asked} with measure.warmup_steps={config.measure.warmup_steps}: the first {GRAPH_WARMUP_STEPS - 1} "
            f"steps are taken without the graph; give at least {GRAPH_WARMUP_STEPS}"
        )
    return None


def _compile(config: Config) -> str | None:
    size = getattr(config.strategy.options, "bucket_mb", None)
    if not getattr(config.framework.options, "compile", False) or size is None or size >= FIRST_COMPILED_BUCKET_MB:
        return None
    return (
        f"framework.options.compile=true with strategy.options.bucket_mb={size:g}: torch.compile splits the network "
        f"after a first bucket of {FIRST_COMPILED_BUCKET_MB} MB, and later ones may not be smaller; take "
        f"bucket_mb={FIRST_COMPILED_BUCKET_MB} or more, or compile=false"
    )


def _compile_mode(config: Config) -> str | None:
    mode = _mode(config)
    if mode == "default":
        return None
    asked = f"framework.options.compile_mode={mode}"
    if not config.framework.options.compile:
        return f"{asked} needs framework.options.compile=true"
    if mode in GRAPH_MODES and not strategies.info(config.strategy.name).cuda_graph:
        return (
            f"{asked} uses CUDA graphs, which are not offered with strategy '{config.strategy.name}'; supported with: "
            f"{_listed(lambda row: row.cuda_graph)}; take default or max-autotune-no-cudagraphs"
        )
    if mode in TUNED_MODES and config.deterministic:
        return f"{asked} chooses kernels by their time, which deterministic=true rules out; take default"
    return None


def _listed(holds: Callable[[StrategyInfo], bool]) -> str:
    return ", ".join(strategies.names(holds))


def _mode(config: Config) -> str:
    mode = getattr(config.framework.options, "compile_mode", None)
    return "default" if mode is None else str(mode.name)
