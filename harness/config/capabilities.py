"""Reject unsupported combinations of framework, strategy, options, precision, optimiser and number of ranks."""

from __future__ import annotations

from enum import Enum
from typing import Any

from harness.config import determinism, input_pipelines, model_parallel, parameter_servers, performance_options
from harness.config.framework_capabilities import CAPABILITIES
from harness.config.schema import Compress, Config
from harness.core.spec import EMULATED
from harness.core.strategies import NETWORK, PLAIN, WEIGHTS, info, names, offered_by
from models import catalog

# The only framework with label smoothing.
SMOOTHING = "pytorch"
# The only framework with norm_bias_factor and lookahead.
BESIDE = "pytorch"
# Frameworks with whitening layers, which are computed from the training images. Emulated runs only count them.
WHITENING = ("pytorch", EMULATED)
# Strategies that offer only some kinds of compression.
COMPRESS = {"horovod": (Compress.none, Compress.fp16)}


def unsupported(config: Config) -> str | None:
    """Return why the combination is unsupported, or None if it is supported."""
    framework, strategy = config.framework, config.strategy
    capabilities = CAPABILITIES[framework.name]
    if strategy.name not in offered_by(framework.name):
        return (
            f"strategy '{strategy.name}' is not offered by framework '{framework.name}'; "
            f"{framework.name} offers: {', '.join(offered_by(framework.name))}"
        )
    if config.precision.name not in capabilities.precisions:
        return (
            f"precision={config.precision.name} is not offered by framework '{framework.name}'; "
            f"{framework.name} offers: {', '.join(capabilities.precisions)}"
        )
    if config.optimizer.name.name not in capabilities.optimizers:
        return (
            f"optimizer.name={config.optimizer.name.name} is not offered by framework '{framework.name}'; "
            f"{framework.name} offers: {', '.join(capabilities.optimizers)}"
        )
    if config.optimizer.label_smoothing and framework.name != SMOOTHING:
        return (
            f"optimizer.label_smoothing={config.optimizer.label_smoothing:g} is not offered by framework "
            f"'{framework.name}'; framework={SMOOTHING} offers it"
        )
    if (
        sentence := _of_the_step(config)
        or _of_the_network(config)
        or input_pipelines.unsupported(config)
        or performance_options.unsupported(config)
        or determinism.unsupported(config)
    ):
        return sentence
    for name in capabilities.no_effect.get(strategy.name, ()):
        default = getattr(type(strategy.options)(), name)
        if getattr(strategy.options, name) != default:
            return (
                f"strategy.options.{name} has no effect in framework '{framework.name}'; "
                f"leave it at {_as_text(default)}"
            )
    if getattr(strategy.options, "compress", Compress.none) not in COMPRESS.get(strategy.name, Compress):
        return (
            f"strategy.options.compress={strategy.options.compress.name} is not offered by strategy '{strategy.name}'; "
            f"it offers: {', '.join(known.name for known in COMPRESS[strategy.name])}"
        )
    if framework.name == "keras" and framework.options.jit_compile and strategy.name != PLAIN:
        return (
            "framework.options.jit_compile=true with framework=keras needs strategy=plain: XLA compiles Keras's "
            f"whole step, including the exchange of strategy={strategy.name}; framework=tensorflow compiles all but "
            "the exchange"
        )
    known = info(strategy.name)
    if known.divides == WEIGHTS and config.optimizer.name.name == "lars":
        return (
            f"optimizer.name=lars is not offered with strategy '{strategy.name}': no rank has a whole layer; take sgd "
            "or adam"
        )
    if strategy.name == "hybrid" and framework.options.compile:
        return (
            "framework.options.compile=true is not offered with strategy 'hybrid': its layers send messages in backward"
        )
    if known.divides == NETWORK:
        return model_parallel.unsupported(config)
    if strategy.name == "hybrid" and config.dataset.context:
        return (
            "strategy 'hybrid' is not offered for text: its sufficient factors would be per token, not per "
            "sample, and usually larger than the gradients; take allreduce"
        )
    if known.servers:
        return parameter_servers.unsupported(config)
    if strategy.name == PLAIN and config.gpus > 1:
        return f"strategy 'plain' has one rank only; with gpus={config.gpus} take another strategy, or baseline=plain"
    return None


def _of_the_step(config: Config) -> str | None:
    """Return why norm_bias_factor or lookahead is unsupported: both need all weights on every rank."""
    optimizer, framework, strategy = config.optimizer, config.framework.name, config.strategy.name
    asked = {"norm_bias_factor": optimizer.norm_bias_factor != 1, "lookahead_steps": optimizer.lookahead_steps != 0}
    for key in (key for key, wanted in asked.items() if wanted):
        given = f"optimizer.{key}={getattr(optimizer, key):g}"
        if framework != BESIDE:
            return f"{given} is not offered by framework '{framework}'; framework={BESIDE} offers it"
        if not (info(strategy).own_step and info(strategy).synchronous):
            offered = ", ".join(names(lambda row: row.own_step and row.synchronous))
            return (
                f"{given} is not offered with strategy '{strategy}'; supported with: {offered}, where each rank takes "
                "the whole step"
            )
    known = catalog.CATALOG.get(config.model.name)
    if asked["norm_bias_factor"] and known is not None and not _has_batch_norm(config, known):
        return (
            f"optimizer.norm_bias_factor={optimizer.norm_bias_factor:g} has no effect: model '{known.name}' has no "
            "BatchNorm; leave it at 1"
        )
    return None


def _has_batch_norm(config: Config, row: catalog.Network) -> bool:
    data = config.dataset
    if row.inputs == catalog.TEXT or data.image_size < row.min_image_size:  # rejected elsewhere
        return row.inputs != catalog.TEXT
    layers = row.layers(data.channels, data.classes, data.image_size)
    return any(isinstance(layer, catalog.BatchNorm) for layer in catalog.flat(layers))


def _of_the_network(config: Config) -> str | None:
    """Return why the framework lacks the network, or the network does not fit the data set."""
    framework, known = config.framework, catalog.CATALOG.get(config.model.name)
    if known is None:  # rejected elsewhere
        return None
    inputs = CAPABILITIES[framework.name].inputs
    if known.inputs not in inputs:
        offered = [row.name for row in catalog.CATALOG.values() if row.inputs in inputs]
        return (
            f"model '{known.name}' is a network for {known.inputs}, which framework '{framework.name}' does not offer; "
            f"{framework.name} offers: {', '.join(offered)}; framework=pytorch offers all networks"
        )
    if bool(config.dataset.context) == bool(config.dataset.image_size):  # rejected elsewhere
        return None
    if known.whitens and framework.name not in WHITENING:
        return (
            f"model '{known.name}' has a first layer computed from the training images, which framework "
            f"'{framework.name}' does not offer; framework={WHITENING[0]} offers it"
        )
    holds = catalog.TEXT if config.dataset.context else catalog.IMAGES
    if known.inputs != holds:
        fitting = [row.name for row in catalog.CATALOG.values() if row.inputs == holds]
        return (
            f"model '{known.name}' is a network for {known.inputs}, and data set '{config.dataset.name}' holds {holds};"
            f" networks for {holds}: {', '.join(fitting)}"
            + ("; data sets of text: dataset=text, synthetic_text" if holds == catalog.IMAGES else "")
        )
    return None


def _as_text(value: Any) -> str:
    """Format a value as YAML does."""
    if isinstance(value, Enum):
        return value.name
    return "null" if value is None else str(value).lower()
