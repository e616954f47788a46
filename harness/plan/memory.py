"""Estimates the memory that a training step needs on one GPU, from the model catalogue alone.

Not included: workspaces of convolutions and matrix products, communication buffers, the framework's own memory,
fragmentation. Activations are those that PyTorch keeps (models/activations.py). GB means 2^30 bytes, as in nvidia-smi.
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
FLOAT = 4  # bytes: weights, gradients and optimiser state are fp32, except with half_weights
MOST_GPUS = 4096


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU."""

    parameters: int
    gradients: int
    optimizer: int
    weight_copies: int  # half-precision copies, with automatic mixed precision
    activations: int  # kept from forward for backward
    activations_per_sample: int  # per sample of the GPU's batch
    data: int = 0  # samples held on the GPU, with data.pipeline=device

    @property
    def fixed(self) -> int:
        """Bytes needed regardless of the batch size."""
        return self.parameters + self.gradients + self.optimizer + self.data

    @property
    def total(self) -> int:
        return self.fixed + self.weight_copies + self.activations


def estimate(spec: RunSpec) -> Memory:
    needed = _training_memory(spec)
    return replace(needed, data=spec.data.samples * math.prod(spec.dataset.sample_shape))


def _training_memory(spec: RunSpec) -> Memory:
    data = spec.dataset
    layers = catalog.network(spec.model).layers(data.channels, data.classes, data.size)
    number_bytes = FLOAT if spec.precision in ("fp32", "tf32") else 2
    per_sample = activations.bytes_per_sample(layers, data.channels, data.size, number_bytes)
    if info(spec.strategy).divides == NETWORK:
        return _split_model_memory(spec, layers, number_bytes)
    parameters, gradients, state = _sharded_sizes(spec, layers)
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=state,
        weight_copies=0 if _half_weights(spec) else activations.weight_copies_bytes(layers, number_bytes),
        activations=spec.batch_per_gpu * per_sample,
        activations_per_sample=per_sample,
    )


def sentence(spec: RunSpec, gpu_memory_gb: float | None) -> str:
    """State the memory needed per GPU and, if its size is known, whether it fits."""
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
    """Return whether the estimate fits; True if the memory size is unknown."""
    return gpu_memory_gb is None or estimate(spec).total <= gpu_memory_gb * GB


def check(spec: RunSpec, gpu_memory_gb: float | None, offered: Collection[str]) -> None:
    """Raise UserError if the run cannot fit even without activations. offered: the framework's strategies."""
    if gpu_memory_gb is None:
        return
    needed = estimate(spec)
    if needed.fixed <= gpu_memory_gb * GB:
        return
    if needed.fixed - needed.data <= gpu_memory_gb * GB:
        raise UserError(
            f"data.pipeline=device: the {spec.data.samples:,} samples of data set '{spec.dataset.name}' are "
            f"{needed.data / GB:.1f} GB, in addition to {(needed.fixed - needed.data) / GB:.1f} GB for model "
            f"'{spec.model}'; each GPU has {gpu_memory_gb:g} GB (cluster.gpu_memory_gb): use data.pipeline=harness or "
            "framework"
        )
    raise UserError(
        f"model '{spec.model}' with strategy '{spec.strategy}' and optimizer.name={spec.optimizer.name} on gpus="
        f"{spec.gpus} does not fit: parameters {needed.parameters / GB:.1f}, gradients {needed.gradients / GB:.1f} and "
        f"the optimiser's state {needed.optimizer / GB:.1f} are {needed.fixed / GB:.1f} GB on each GPU, which has "
        f"{gpu_memory_gb:g} GB (cluster.gpu_memory_gb); {_suggestion(spec, gpu_memory_gb * GB, offered)}"
    )


def _half_weights(spec: RunSpec) -> bool:
    return bool(spec.framework_options.get("half_weights", False))


def _sharded_sizes(spec: RunSpec, layers: catalog.Layers) -> tuple[int, int, int]:
    """Return (parameters, gradients, optimiser state) in bytes held by one GPU under its strategy."""
    whole = (2 if _half_weights(spec) else FLOAT) * catalog.parameters(layers)
    state = _state_values(spec.optimizer) * whole
    strategy = info(spec.strategy)
    if strategy.divides == OPTIMIZER_STATE:
        return whole, whole, _per_rank(state, spec.gpus)
    if strategy.divides == WEIGHTS:
        parameters = _per_rank(whole, spec.gpus) + FLOAT * _unsharded_parameters(layers)
        return parameters, _per_rank(whole, spec.gpus), _per_rank(state, spec.gpus)
    if strategy.servers:
        return whole, whole, 0  # held by the servers, in host memory
    return whole, whole, state


def _split_model_memory(spec: RunSpec, layers: catalog.Layers, number_bytes: int) -> Memory:
    """Memory of the most loaded GPU when several GPUs share one copy of the model."""
    shares = model_parallel.shares(spec, layers, number_bytes)
    whole = catalog.parameters(layers)
    copies = activations.weight_copies_bytes(layers, number_bytes)
    every = [
        Memory(
            parameters=FLOAT * held,
            gradients=FLOAT * held,
            optimizer=_state_values(spec.optimizer) * FLOAT * held,
            weight_copies=copies * held // whole,
            activations=kept,
            activations_per_sample=_per_rank(kept, spec.batch_per_gpu),
        )
        for held, kept in shares
    ]
    return max(every, key=lambda memory: memory.total)


def _state_values(optimizer: OptimizerSpec) -> int:
    """Values kept by the optimiser per parameter, including slow weights."""
    slow = 1 if optimizer.lookahead_steps else 0
    if optimizer.name == "adam":
        return 2 + slow
    return slow + (1 if optimizer.name == "lars" or optimizer.momentum else 0)


def _unsharded_parameters(layers: catalog.Layers) -> int:
    """Parameters that fsdp holds unsharded at a time.

    These are the largest block and everything outside blocks, which stays gathered for the whole step
    (harness/worker/pytorch/strategies/fsdp.py).
    """
    blocks = [
        catalog.parameters((layer,))
        for layer in layers
        if isinstance(layer, (catalog.Residual, catalog.TransformerBlock))
    ]
    return catalog.parameters(layers) - sum(blocks) + max(blocks, default=0)


def _per_rank(size: int, ranks: int) -> int:
    return math.ceil(size / ranks)


def _suggestion(spec: RunSpec, limit: float, offered: Collection[str]) -> str:
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
        if needed.fixed + needed.weight_copies + needed.activations_per_sample <= limit:
            batch = "" if needed.total <= limit else f": {_largest_batch(other, limit / GB)}"
            return (
                f"strategy={other.strategy} on gpus={other.gpus} would need about {needed.total / GB:.1f} GB, "
                f"activations included{batch}"
            )
    return "use a smaller model, or GPUs with more memory"


def _largest_batch(spec: RunSpec, gpu_memory_gb: float) -> str:
    needed = estimate(spec)
    left = gpu_memory_gb * GB - needed.fixed - needed.weight_copies
    if left < needed.activations_per_sample:
        return "not even one sample per GPU would"
    samples = int(left // needed.activations_per_sample)
    return f"{samples} samples per GPU would" if samples > 1 else "one sample per GPU would"
