"""The halves of tests of precision=fp16 that run inside the JAX environment (see environments.in_environment)."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from pathlib import Path
from typing import Any, Dict

import jax
import numpy as np
from builders import make_spec
from jax_side import RANKS, _adapter, _batches, _flat, set_scale, two_ranks

from harness.core.rendezvous import Rendezvous
from harness.worker.loss_scale import LossScale, updated


def half_precision() -> Dict[str, Any]:
    """Compare eight steps in fp16, with overflows in the first and the fifth, with NumPy, from the adapter's own
    gradients by the rule of harness/worker/loss_scale.py."""
    optimizer = dataclasses.replace(make_spec().optimizer, lr=0.02, lr_batch=16, weight_decay=0.1)
    batches = list(_batches(8))
    adapter = _adapter(iter(batches), precision="fp16", optimizer=optimizer)
    wide = _adapter(iter(batches[1:]))
    start = [w.astype(np.float64) for w in adapter.weights()]
    expected, velocity = [w.copy() for w in start], [np.zeros_like(w) for w in start]
    scale, skipped, moved, scales, cosine = LossScale(), [], [], [], 0.0
    for step in range(8):
        if step in FORCED:
            scale = FORCED[step]
            set_scale(adapter, scale)
        before = _flat(adapter.weights())
        adapter.step()
        gradients = adapter.gradients()
        if step == 1:  # the first that is not skipped
            wide.step()
            a, b = _flat(wide.gradients()), _flat(gradients)
            cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        finite = all(np.isfinite(gradient).all() for gradient in gradients)
        skipped += [] if finite else [step]
        moved += [step] if not np.array_equal(before, _flat(adapter.weights())) else []
        scale = updated(scale, finite)
        scales.append(tuple(float(value) for value in adapter.state.scaling) == (scale.scale, scale.good_steps))
        if finite:
            for w, v, g in zip(expected, velocity, gradients):
                v *= 0.9
                v += g + 0.1 * w
                w -= 0.01 * v
    distance = max(float(np.abs(e - s).max()) for e, s in zip(expected, start))
    kept = jax.tree.leaves((adapter.state.params, adapter.state.velocity, adapter.last_gradients))
    return {
        "skipped": skipped,
        "moved": moved,
        "scales": all(scales),
        "error": max(float(np.abs(w - e).max()) for w, e in zip(adapter.weights(), expected)) / distance,
        "cosine": cosine,
        "loss": bool(np.isfinite(adapter.loss())),
        "dtypes": sorted({str(array.dtype) for array in kept}),
    }


# Scales set before a step: large enough to overflow the logits' gradients, the second time after normal steps; before
# the last step, so that the scale grows.
FORCED = {0: LossScale(2.0**24), 1: LossScale(), 4: LossScale(2.0**24), 5: LossScale(), 7: LossScale(2.0**10, 1999)}


def overflow_of_one_rank(strategy: str) -> Dict[str, Any]:
    """Two ranks take three steps in fp16; in the second, only rank 1's gradients are not finite."""
    said = two_ranks("jax_scaling_side", "one_rank_overflows", strategy)
    ranks = said.pop("said")
    return {
        **said,
        "finite": [answer["finite"].tolist() for answer in ranks],
        "moved": [answer["moved"].tolist() for answer in ranks],
        "scales": [answer["scales"].tolist() for answer in ranks],
        "same": all(np.array_equal(ranks[0][name], ranks[1][name]) for name in ("weights", "velocity")),
    }


def one_rank_overflows(strategy: str, port: str, folder: str, name: str) -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if name == "from MPI" else name)
    rendezvous = Rendezvous(rank, RANKS, rank, RANKS, "127.0.0.1", int(port))
    batch = list(_batches(RANKS))[rank]
    adapter = _adapter(itertools.repeat(batch), rendezvous, strategy=strategy, precision="fp16")
    usual, factor = adapter.to_device, 1.0
    # Always of one type, so that both ranks run one program.
    adapter.to_device = lambda images, labels: usual(images.astype(np.float32) * np.float32(factor), labels)
    finite, moved, scales = [], [], []
    for step in range(3):
        factor = 1e30 if step == 1 and rank == 1 else 1.0
        before = _flat(adapter.weights())
        adapter.step()
        finite.append(all(np.isfinite(gradient).all() for gradient in adapter.gradients()))
        moved.append(not np.array_equal(before, _flat(adapter.weights())))
        scales.append(float(np.asarray(adapter.strategy.local(adapter.state.scaling).scale)))
    velocity = _flat(adapter.strategy.local(adapter.state.velocity))
    answer = {"finite": finite, "moved": moved, "scales": scales, "weights": _flat(adapter.weights())}
    adapter.fence()
    adapter.close()
    np.savez(Path(folder) / f"rank{rank}.npz", velocity=velocity, **answer)
    sys.stdout.flush()
    os._exit(0)
