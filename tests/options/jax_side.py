"""The options matrix: the reference in JAX (see train_side.py)."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, List, Tuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from options.plain_sgd_side import DEFECTS, Arrays, Batch, trained

from harness.core.spec import DatasetSpec, RunSpec
from models import catalog, initial
from models import jax as networks

__all__ = ["DEFECTS", "reference", "reset"]
COMPUTE_TYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


def reference(spec: RunSpec, batches: Callable[[int], Iterator[Batch]], defect: str = "") -> List[np.ndarray]:
    weights, gradient = _network(spec.model, spec.dataset, spec.seed, spec.precision)

    def gradients(weights: Arrays, batch: Batch, scale: float) -> Arrays:
        return networks.from_layout(gradient(networks.to_layout(weights), *batch, np.float32(scale)))

    return trained(spec, weights, gradients, batches, defect)


@functools.lru_cache(maxsize=None)
def _network(model: str, data: DatasetSpec, seed: int, precision: str) -> Tuple[Arrays, Callable[..., Any]]:
    """Return the network's weights and the gradient function of its loss, compiled once for all runs."""
    layers = catalog.network(model).layers(data.channels, data.classes, data.image_size)
    _, statistics = networks.build(layers, seed)
    mean, std = (np.array(values, np.float32) * 255 for values in (data.mean, data.std))

    def loss(weights: Arrays, images: np.ndarray, labels: np.ndarray, scale: float) -> jax.Array:
        pixels = (images.astype(jnp.float32) - mean) / std
        logits, _ = networks.forward(layers, weights, statistics, pixels, True, COMPUTE_TYPES[precision])
        return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean() * scale

    return initial.weights(layers, seed), jax.jit(jax.grad(loss))


def reset() -> None:
    """Reset JAX, which can join other ranks only before it has a device."""
    jax.clear_caches()
    jax.extend.backend.clear_backends()
