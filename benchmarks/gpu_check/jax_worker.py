"""The JAX worker compared with a minimal jitted loop (benchmarks/minimal/jax.py): ResNet-20, batch 128, alternating
blocks.

On a GPU both use tf32, JAX's default for float32.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.sections import Ask, Report, Skipped
from harness.core.spec import InputSpec


def run(ask: Ask, report: Report) -> None:
    try:
        import jax
    except ImportError as error:
        raise Skipped(f"this interpreter has no JAX ({error})") from None
    report(Figure("version", jax.__version__))
    if not ask.reduced:
        # Checking for a GPU allocates none of its memory.
        try:
            kind = jax.devices("gpu")[0].device_kind
        except RuntimeError as error:
            raise Skipped(f"JAX {jax.__version__} sees no GPU: {error}") from None
        report(Figure("device", kind))
    size, batch, steps = (8, 4, 2) if ask.reduced else (32, 128, 20)
    data = runs.images(size, samples=256 if ask.reduced else 4096)
    # tf32 exists on GPUs from Ampere on; JAX accepts it anywhere and computes in fp32 on older ones.
    spec = runs.spec_of(ask, "resnet20", data, batch, "fp32" if ask.reduced else "tf32")
    spec = dataclasses.replace(spec, framework="jax", framework_options={}, data=InputSpec())
    from benchmarks.minimal import jax as minimal

    random = np.random.RandomState(0)
    images = random.randint(0, 256, (data.train_samples, size, size, 3)).astype(np.uint8)
    labels = random.randint(0, 10, data.train_samples)
    with runs.adapter_of(spec, ask) as adapter:
        peer = minimal.trainer(images, labels, batch)
        name = f"resnet20 batch {batch} {spec.precision}"
        runs.against_loop(ask, report, name, adapter, peer, steps, ask.seconds_left)
