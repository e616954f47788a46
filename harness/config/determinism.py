"""Support for deterministic=true: the same command on the same machine trains bit-identical weights."""

from __future__ import annotations

from harness.config.schema import Config
from harness.core.determinism import VARIABLES
from harness.core.spec import DALI
from harness.core.strategies import KVSTORE, info, offered_by
from models import catalog


def unsupported(config: Config) -> str | None:
    """Return why deterministic=true is unsupported, or None if it is supported or was not requested."""
    if not config.deterministic:
        return None
    asked, framework, strategy = "deterministic=true", config.framework.name, config.strategy.name
    if framework not in VARIABLES:
        return f"{asked} is not offered by framework '{framework}'; it is offered by: {', '.join(VARIABLES)}"
    if info(strategy).asynchronous:
        offered = [name for name in offered_by(framework) if not info(name).asynchronous]
        return (
            f"{asked} is not offered with strategy '{strategy}', whose servers apply updates in the order in which "
            f"they arrive; it is offered with: {', '.join(offered)}"
        )
    if strategy == "horovod" and config.gpus > 2 and config.strategy.options.fusion_mb != 0:
        return (
            f"{asked} with strategy 'horovod' on gpus={config.gpus} needs strategy.options.fusion_mb=0: else "
            "timing decides which gradients Horovod sends together, and so the order of sums over more than two ranks"
        )
    if strategy == "horovod" and config.strategy.options.autotune:
        return f"{asked} is not offered with strategy.options.autotune=true, which tunes by timing"
    if config.data.pipeline.name == DALI:
        return f"{asked} is not offered with data.pipeline=dali, which does not guarantee the same pixels in each run"
    compiled = getattr(config.framework.options, "jit_compile", False)
    if (compiled or framework == "jax") and _pools(config):
        given = "framework.options.jit_compile=true" if compiled else "framework 'jax'"
        return (
            f"{asked} is not offered with {given} and model '{config.model.name}': on GPUs, XLA adds the gradients of "
            "max pooling in no fixed order"
        )
    if info(strategy).frameworks.get(framework) == KVSTORE and config.gpus > 2:
        return (
            f"{asked} with framework '{framework}' and strategy '{strategy}' is offered on gpus=1,2 only: the servers "
            "of KVStore add gradients in the order in which they arrive; take horovod or mpi"
        )
    for name in VARIABLES[framework]:
        if name in config.cluster.env:
            return f"{asked} sets {name} itself; leave cluster.env.{name}={config.cluster.env[name]} out"
    return None


def _pools(config: Config) -> bool:
    """Return whether the network has max pooling."""
    row, data = catalog.CATALOG.get(config.model.name), config.dataset
    if row is None or row.inputs == catalog.TEXT or data.image_size < row.min_image_size:  # rejected elsewhere
        return False
    layers = catalog.flat(row.layers(data.channels, data.classes, data.image_size))
    return any(isinstance(layer, catalog.MaxPool) for layer in layers)
