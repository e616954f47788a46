"""Checks of pipeline and tensor parallel requests, made while planning."""

from __future__ import annotations

from collections.abc import Iterable

from harness.config.schema import Config, Scaling, Schedule
from harness.core.spec import RunSpec
from harness.core.strategies import info
from models import activations, catalog, division
from models.activations import FLOAT


def unsupported(config: Config) -> str | None:
    """Return why the ranks cannot divide the network; None if they can, or if another check rejects the point."""
    name = config.strategy.name
    if config.precision.name == "fp16":
        return (
            f"precision=fp16 is not offered by strategy '{name}': a rank whose gradients overflow would skip its step, "
            "but the others would not; take fp32 or bf16"
        )
    if config.optimizer.name.name == "lars":
        return (
            f"optimizer.name=lars is not offered by strategy '{name}': no rank has every whole layer; take sgd or adam"
        )
    if config.framework.options.compile:
        return f"framework.options.compile=true is not offered by strategy '{name}'; leave it at false"
    option = info(name).ranks_option
    assert option is not None
    asked = getattr(config.strategy.options, option)
    ranks = config.gpus if asked is None else asked
    if ranks < 1 or config.model.name not in catalog.CATALOG:
        return None
    if config.gpus % ranks:
        return (
            f"strategy.options.{option}={ranks} does not divide gpus={config.gpus} into whole copies of the "
            f"network; take one of {_listed(_divisors(config.gpus))}, or null for all"
            + (", or baseline=plain for one rank without a strategy" if config.gpus == 1 else "")
        )
    if _size(config) < catalog.network(config.model.name).min_image_size:
        return None
    return _pipeline(config, ranks) if name == "pipeline" else _tensor(config, ranks)


def shares(spec: RunSpec, layers: catalog.Layers, number_bytes: int) -> list[tuple[int, int]]:
    """Return (parameters, bytes of activations kept for backward) for each distinct rank of a replica.

    number_bytes: as in models/activations.py. GPipe keeps the activations of all microbatches; 1F1B keeps as many as
    there are stages from the rank's own to the last.
    """
    data, ranks = spec.dataset, spec.ranks_per_replica

    def kept(end: int) -> int:
        """Bytes per sample kept by the layers before `end`."""
        return activations.bytes_per_sample(layers[:end], data.channels, data.size, number_bytes) if end else 0

    if spec.strategy == "tensor":
        divided = division.divided_parameters(layers)
        between = sum(kept(second + 1) - kept(first + 1) for first, second in division.pairs(layers))
        for block in layers:
            if isinstance(block, catalog.TransformerBlock):
                # query, key, value and attention output; expand and GELU; attention sums.
                numbers = (3 + 1 + 4 + 4) * block.width * number_bytes + block.heads * FLOAT
                between += data.size * numbers
        saved = (ranks - 1) / ranks
        held = catalog.parameters(layers) - round(divided * saved)
        return [(held, spec.batch_per_replica * (kept(len(layers)) - round(between * saved)))]
    microbatches = spec.strategy_options["microbatches"]
    found = []
    for place, (begin, end) in enumerate(division.stages(layers, data.size, ranks)):
        at_once = microbatches if spec.strategy_options["schedule"] == "gpipe" else min(microbatches, ranks - place)
        found.append((catalog.parameters(layers[begin:end]), at_once * spec.microbatch * (kept(end) - kept(begin))))
    return found


def _pipeline(config: Config, stages: int) -> str | None:
    options = config.strategy.options
    most = division.most_stages(_layers(config), _size(config))
    if stages > most:
        return (
            f"model '{config.model.name}' cannot be divided into {stages} pipeline stages, only into {most} at most; "
            f"take strategy.options.stages={max(n for n in _divisors(config.gpus) if n <= most)}"
        )
    if options.schedule is Schedule["1f1b"] and options.microbatches < stages:
        return (
            f"strategy.options.schedule=1f1b with microbatches={options.microbatches} cannot fill {stages} stages; "
            f"take at least {stages} microbatches, or schedule=gpipe"
        )
    ranks = 1 if config.scaling is Scaling.weak else config.gpus
    if config.batch % ranks or options.microbatches < 1:
        return None
    samples = config.batch // ranks * stages
    if samples % options.microbatches:
        least = stages if options.schedule is Schedule["1f1b"] else 1
        valid = [n for n in _divisors(samples) if n >= least]
        return (
            f"strategy.options.microbatches={options.microbatches} does not divide the {samples} samples that a "
            f"pipeline of {stages} stages has in a step; take one of {_listed(valid)}, or another batch"
        )
    return None


def _tensor(config: Config, degree: int) -> str | None:
    units = division.units(_layers(config))
    if not units:
        return (
            f"model '{config.model.name}' has nothing that strategy 'tensor' can divide: it needs two consecutive "
            "convolutions or fully connected layers, with only ReLU and pooling between them, or transformer blocks; "
            "take strategy=pipeline"
        )
    if odd := sorted({n for n in units if n % degree}):
        valid = [n for n in _divisors(config.gpus) if not any(count % n for count in units)]
        return (
            f"strategy.options.degree={degree} does not divide {_listed(odd)} channels, units or heads of model "
            f"'{config.model.name}'; with gpus={config.gpus} take one of {_listed(valid)}"
        )
    return None


def _layers(config: Config) -> catalog.Layers:
    data = config.dataset
    return catalog.network(config.model.name).layers(data.channels, data.classes, _size(config))


def _size(config: Config) -> int:
    """Tokens per sequence, or image side in pixels."""
    return config.dataset.context or config.dataset.image_size


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
