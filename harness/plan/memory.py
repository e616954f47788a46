"""Does it fit? Bytes that a training step needs on one GPU, by the catalogue's arithmetic, before anything is started.

An estimate: without the workspace of convolutions and products, buffers of the communication library, what the
framework itself takes, and fragmentation. Activations are what PyTorch keeps (models/activations.py). A pure room.
GB here are 2^30 bytes, as nvidia-smi counts.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from harness.config import model_parallel
from harness.core.errors import UserError
from harness.core.spec import OptimizerSpec, RunSpec
from harness.core.strategies import NETWORK, OPTIMIZER_STATE, WEIGHTS, info, names
from models import activations, catalog

GB, MB = 2**30, 2**20
FLOAT = 4  # bytes: weights, gradients and the optimiser's state are in single precision, but with half_weights
MOST_GPUS = 4096


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU. weight_copies: in half precision, with automatic mixed precision. activations: kept from
    forward for backward; activations_per_sample: of each sample of the GPU's batch. data: samples that the GPU holds,
    with data.pipeline=device."""

    parameters: int
    gradients: int
    optimizer: int
    weight_copies: int
    activations: int
    activations_per_sample: int
    data: int = 0

    @property
    def certain(self) -> int:
        """What is there at the optimiser's step, whatever the batch is."""
        return self.parameters + self.gradients + self.optimizer + self.data

    @property
    def total(self) -> int:
        return self.certain + self.weight_copies + self.activations


def estimate(spec: RunSpec) -> Memory:
    needed = _of_training(spec)
    return replace(needed, data=spec.data.samples * math.prod(spec.dataset.sample_shape))


def _of_training(spec: RunSpec) -> Memory:
    data = spec.dataset
    layers = catalog.network(spec.model).layers(data.channels, data.classes, data.size)
    number_bytes = FLOAT if spec.precision in ("fp32", "tf32") else 2
    per_sample = activations.bytes_per_sample(layers, data.channels, data.size, number_bytes)
    if info(spec.strategy).divides == NETWORK:
        return _between_ranks(spec, layers, number_bytes)
    parameters, gradients, state = _divided(spec, layers)
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=state,
        weight_copies=0 if _halved(spec) else activations.weight_copies_bytes(layers, number_bytes),
        activations=spec.batch_per_gpu * per_sample,
        activations_per_sample=per_sample,
    )


def sentence(spec: RunSpec, gpu_memory_gb: float | None) -> str:
    """What a point needs on each GPU, and whether it fits where that is known."""
    needed = estimate(spec)
    unit, name = (GB, "GB") if needed.total >= GB else (MB, "MB")
    parts = [("parameters", needed.parameters), ("gradients", needed.gradients), ("optimiser", needed.optimizer)]
    if needed.weight_copies:
        parts.append((f"weights in {spec.precision}", needed.weight_copies))
    parts.append(("activations", needed.activations))
    if needed.data:
        parts.append(("data set", needed.data))
    listed = ", ".join(f"{what} {size / unit:.1f}" for what, size in parts)
    one = "GPU" if spec.cluster.device == "cuda" else "rank"
    text = f"about {needed.total / unit:.1f} {name} per {one} ({listed})"
    if gpu_memory_gb is None:
        return text
    text += f" of {gpu_memory_gb:g} GB: "
    return text + ("fits" if fits(spec, gpu_memory_gb) else f"may not fit: {_largest_batch(spec, gpu_memory_gb)}")


def fits(spec: RunSpec, gpu_memory_gb: float | None) -> bool:
    """By the estimate; also where the size of the memory is not known."""
    return gpu_memory_gb is None or estimate(spec).total <= gpu_memory_gb * GB


def check(spec: RunSpec, gpu_memory_gb: float | None, offered: Collection[str]) -> None:
    """offered: the strategies of the framework. Raises UserError where even without activations it cannot fit."""
    if gpu_memory_gb is None:
        return
    needed = estimate(spec)
    if needed.certain <= gpu_memory_gb * GB:
        return
    if needed.certain - needed.data <= gpu_memory_gb * GB:
        raise UserError(
            f"data.pipeline=device: the {spec.data.samples:,} samples of data set '{spec.dataset.name}' are "
            f"{needed.data / GB:.1f} GB, beside {(needed.certain - needed.data) / GB:.1f} GB for model '{spec.model}'; "
            f"a GPU has {gpu_memory_gb:g} GB (cluster.gpu_memory_gb): take data.pipeline=harness or framework"
        )
    raise UserError(
        f"model '{spec.model}' with strategy '{spec.strategy}' and optimizer.name={spec.optimizer.name} on gpus="
        f"{spec.gpus} does not fit: parameters {needed.parameters / GB:.1f}, gradients {needed.gradients / GB:.1f} and "
        f"the optimiser's state {needed.optimizer / GB:.1f} are {needed.certain / GB:.1f} GB on each GPU, which has "
        f"{gpu_memory_gb:g} GB (cluster.gpu_memory_gb); {_what_would(spec, gpu_memory_gb * GB, offered)}"
    )


def _halved(spec: RunSpec) -> bool:
    return bool(spec.framework_options.get("half_weights", False))


def _divided(spec: RunSpec, layers: catalog.Layers) -> tuple[int, int, int]:
    """(parameters, gradients, optimiser's state) in bytes: what one GPU has of them under its strategy."""
    whole = (2 if _halved(spec) else FLOAT) * catalog.parameters(layers)
    state = _states(spec.optimizer) * whole
    strategy = info(spec.strategy)
    if strategy.divides == OPTIMIZER_STATE:
        return whole, whole, _share(state, spec.gpus)
    if strategy.divides == WEIGHTS:
        parameters = _share(whole, spec.gpus) + FLOAT * _gathered(layers)
        return parameters, _share(whole, spec.gpus), _share(state, spec.gpus)
    if strategy.servers:
        return whole, whole, 0  # the servers have it, in the memory of hosts
    return whole, whole, state


def _between_ranks(spec: RunSpec, layers: catalog.Layers, number_bytes: int) -> Memory:
    """Of the GPU that needs the most, where several have one copy of the network between them."""
    shares = model_parallel.shares(spec, layers, number_bytes)
    whole = catalog.parameters(layers)
    copies = activations.weight_copies_bytes(layers, number_bytes)
    every = [
        Memory(
            parameters=FLOAT * held,
            gradients=FLOAT * held,
            optimizer=_states(spec.optimizer) * FLOAT * held,
            weight_copies=copies * held // whole,
            activations=kept,
            activations_per_sample=_share(kept, spec.batch_per_gpu),
        )
        for held, kept in shares
    ]
    return max(every, key=lambda memory: memory.total)


def _states(optimizer: OptimizerSpec) -> int:
    """Numbers that the optimiser keeps for each parameter, slow weights included."""
    slow = 1 if optimizer.lookahead_steps else 0
    if optimizer.name == "adam":
        return 2 + slow
    return slow + (1 if optimizer.name == "lars" or optimizer.momentum else 0)


def _gathered(layers: catalog.Layers) -> int:
    """Parameters that fsdp has whole at a time: the largest block, and what is in no block, which stays for the whole
    step (harness/worker/pytorch/strategies/fsdp.py)."""
    blocks = [
        catalog.parameters((layer,))
        for layer in layers
        if isinstance(layer, (catalog.Residual, catalog.TransformerBlock))
    ]
    return catalog.parameters(layers) - sum(blocks) + max(blocks, default=0)


def _share(size: int, ranks: int) -> int:
    return math.ceil(size / ranks)


def _what_would(spec: RunSpec, limit: float, offered: Collection[str]) -> str:
    # In the order of the registry: what costs less speed first.
    smaller = names(lambda row: row.divides in (OPTIMIZER_STATE, WEIGHTS) and row.name in offered)
    others = [replace(spec, strategy=name) for name in smaller if name != spec.strategy]
    sharded = [name for name in smaller if info(name).divides == WEIGHTS]
    gpus = spec.gpus
    while sharded and 2 * gpus <= MOST_GPUS:
        gpus *= 2
        others += [replace(spec, strategy=name, gpus=gpus) for name in sharded]
    for other in others:
        needed = estimate(other)
        if needed.certain + needed.weight_copies + needed.activations_per_sample <= limit:
            batch = "" if needed.total <= limit else f": {_largest_batch(other, limit / GB)}"
            return (
                f"strategy={other.strategy} on gpus={other.gpus} would need about {needed.total / GB:.1f} GB, "
                f"activations included{batch}"
            )
    return "take a smaller model, or GPUs with more memory"


def _largest_batch(spec: RunSpec, gpu_memory_gb: float) -> str:
    needed = estimate(spec)
    left = gpu_memory_gb * GB - needed.certain - needed.weight_copies
    if left < needed.activations_per_sample:
        return "not even one sample per GPU would"
    samples = int(left // needed.activations_per_sample)
    return f"{samples} samples per GPU would" if samples > 1 else "one sample per GPU would"
