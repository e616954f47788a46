"""What a framework's adapter computes from a fixed batch; runs in every framework's environment."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

import noise  # noqa: F401  # networks of the tests
import numpy as np
from builders import make_site, make_spec

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.worker.adapter import Adapter
from harness.worker.distributed.exchange import own_port

# Few images and a seed for which no activation is within rounding of 0. Otherwise, as in most batches of 16, a ReLU
# switches in some frameworks, and all gradients before it change by 1 %.
BATCH, SEED = 4, 3
# Each step amplifies rounding, the more the larger it is.
LEARNING_RATE = 0.0025
MOST_ELEMENTS = 100000
OPTIONS: Dict[str, Dict[str, Any]] = {
    "pytorch": {"compile": False, "channels_last": True},
    "tensorflow": {"jit_compile": False},
    "keras": {"jit_compile": False},
    "mxnet": {},
    "jax": {},
}


def compute(framework: str, cases: Sequence[Tuple[str, int, int]], folder: str) -> None:
    """Write `<model>-<image size>.npz` for each case (model, image size, steps)."""
    package = importlib.import_module(f"harness.worker.{framework}")
    for model, size, steps in cases:
        random = np.random.RandomState(SEED)
        images = random.randint(0, 256, (BATCH, size, size, 3)).astype(np.uint8)
        labels = random.randint(0, 10, BATCH)
        alone = Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port())
        batches = itertools.repeat((images, labels))
        adapter = package.Adapter(_spec(framework, model, size), make_site(), alone, batches)
        np.savez(Path(folder) / f"{model}-{size}.npz", **_computed(adapter, images, steps))


def _thinned(gradient: np.ndarray) -> np.ndarray:
    """Return evenly spaced elements of a large array, which may have 20 million and more."""
    flat = gradient.reshape(-1)
    return flat[:: max(1, flat.size // MOST_ELEMENTS)].copy()


def _spec(framework: str, model: str, size: int) -> RunSpec:
    spec = make_spec(
        framework=framework,
        framework_options=OPTIONS[framework],
        strategy="plain",
        strategy_options={},
        model=model,
        gpus=1,
        global_batch=BATCH,
        batch_per_gpu=BATCH,
    )
    optimizer = replace(spec.optimizer, lr=LEARNING_RATE, lr_rule="constant")
    return replace(spec, dataset=replace(spec.dataset, image_size=size), optimizer=optimizer)


def _computed(adapter: Adapter, images: np.ndarray, steps: int) -> Dict[str, np.ndarray]:
    """Return logits before the first step, of fewer images than a batch; gradient<n> of the first step; losses [steps];
    and trained, the logits after the last step."""
    found = {"parameters": np.array(adapter.facts()["parameters"]), "logits": adapter.logits(images[:3])}
    losses = []
    for step in range(steps):
        adapter.step()
        adapter.fence()
        losses.append(adapter.loss())
        if step == 0:
            found.update({f"gradient{n}": _thinned(gradient) for n, gradient in enumerate(adapter.gradients())})
    adapter.share_statistics()
    return {**found, "losses": np.array(losses), "trained": adapter.logits(images[:3])}
