"""The halves of tests of precision=fp16 that run inside the MXNet environment (see environments.in_environment)."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys
from pathlib import Path
from typing import Any, Dict, List

import mxnet as mx
import numpy as np
from builders import make_spec
from mxnet_side import _adapter, _batch, _flat, two_ranks
from noise import SMALLEST

from harness.worker.loss_scale import GROWTH_INTERVAL, LossScale, updated
from harness.worker.mxnet import machine
from harness.worker.mxnet.scaled_sgd import ScaledSgd
from models import catalog, initial
from models import mxnet as networks


def scaled_by_hand(nesterov: bool) -> Dict[str, Any]:
    """Compare SGD with loss scaling, over steps of which two overflow (one with infinity, one with NaN) and a growing
    scale, with the rule in Python and SGD in NumPy and double precision."""
    spec = dataclasses.replace(
        make_spec().optimizer, lr=0.5, lr_rule="constant", weight_decay=0.1, warmup_steps=5, nesterov=nesterov
    )
    random, shapes = np.random.RandomState(0), [(7, 5), (3,), (70, 70)]
    weights = [random.standard_normal(shape) for shape in shapes]
    optimizer = ScaledSgd(spec, [mx.nd.array(weight) for weight in weights])
    start, velocity = _flat(weights), [np.zeros_like(weight) for weight in weights]
    known = LossScale(2.0**16, GROWTH_INTERVAL - 3)
    optimizer.scaling = [mx.nd.array([value]) for value in known]
    agree, still = True, []
    for step in range(9):
        gradients = [random.standard_normal(shape) for shape in shapes]
        finite, rate = step not in (0, 6), spec.learning_rate(32, step)
        scaled = [3 * known.scale * gradient for gradient in gradients]
        if not finite:
            scaled[1][1] = np.inf if step else np.nan
        before = [array.asnumpy() for array in (*optimizer.weights, *optimizer.momenta)]
        optimizer.step([mx.nd.array(gradient) for gradient in scaled], 1 / 3, rate)
        after = [array.asnumpy() for array in (*optimizer.weights, *optimizer.momenta)]
        still += [step] if all(np.array_equal(a, b) for a, b in zip(before, after)) else []
        known = updated(known, finite)
        agree = agree and [float(value.asscalar()) for value in optimizer.scaling] == list(known)
        if finite:
            for w, v, g in zip(weights, velocity, gradients):
                g += spec.weight_decay * w
                v *= spec.momentum
                v += g
                w -= rate * (g + spec.momentum * v if nesterov else v)
    ours, theirs = _flat([weight.asnumpy() for weight in optimizer.weights]), _flat(weights)
    error = float(np.abs(ours - theirs).max() / np.abs(theirs - start).max())
    return {"error": error, "still": still, "scales": agree, "scale": known.scale}


def half_types() -> Dict[str, List[str]]:
    """Return the types in a network for fp16, by kind of array; MXNet infers them without computing."""
    layers = catalog.network("cnn_small").layers(3, 10, 32) + catalog.network("resnet20").layers(3, 10, 32)
    network = networks.build(layers[:-1], 0, half=True)
    inside = network(mx.sym.var("data", dtype="float32", shape=(2, 3, 32, 32))).get_internals()
    found: Dict[str, set] = {}
    for name, kind in zip(inside.list_outputs(), inside.infer_type()[1]):
        found.setdefault(re.sub(r"^.*?(conv|dense|batchnorm|pool)\d*_", r"\1 ", name), set()).add(np.dtype(kind).name)
    return {name: sorted(kinds) for name, kinds in found.items()}


def half_precision() -> Dict[str, Any]:
    """Compare the adapter's steps with loss scaling, the second of which overflows, with fp32. MXNet has no fp16
    convolutions on CPUs: there the network computes in fp32, with the same scaling around it."""
    on_gpu = bool(machine.gpus())
    networks.HALF = "float16" if on_gpu else "float32"
    device = "cuda" if on_gpu else "cpu"
    batches = [_batch(step) for step in range(4)]
    wide = _adapter(iter([batches[0], *batches[2:]]), device=device)
    half = _adapter(iter(batches), precision="fp16", device=device)
    std, said = half.std, {"finite": [], "scale": [], "cosine": []}
    for step in range(4):
        half.std = std * 0 if step == 1 else std
        half.step()
        gradients = half.gradients()
        said["finite"].append(all(np.isfinite(gradient).all() for gradient in gradients))
        said["scale"].append(float(half.optimizer.scale.asscalar()))
        if step != 1:
            wide.step()
            a, b = _flat(wide.gradients()), _flat(gradients)
            said["cosine"].append(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    apart, ours = _flat(wide.weights()), _flat(half.weights())
    start = _flat(initial.weights(catalog.network(SMALLEST).layers(3, 10, 32), 0))
    return {
        **said,
        "apart": float(np.linalg.norm(ours - apart) / np.linalg.norm(apart - start)),
        "dtypes": sorted({np.dtype(array.dtype).name for array in (*half.parameters, *half.own_gradients)}),
        "on_gpu": on_gpu,
    }


def overflow_of_one_rank(strategy: str) -> Dict[str, Any]:
    """Two ranks take three steps with loss scaling; in the second, only rank 1's gradients are not finite. The network
    computes in fp32, as in `half_precision`."""
    codes, said = two_ranks("mxnet_scaling_side", "one_rank_overflows", strategy)
    return {
        "codes": codes,
        "finite": [answer["finite"].tolist() for answer in said],
        "moved": [answer["moved"].tolist() for answer in said],
        "scales": [answer["scales"].tolist() for answer in said],
        "same": all(np.array_equal(said[0][name], said[1][name]) for name in ("weights", "momenta")),
    }


def one_rank_overflows(strategy: str, port: str, folder: str, name: str) -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if name == "from MPI" else name)
    networks.HALF = "float32"
    rendezvous = (rank, 2, rank, 2, "127.0.0.1", int(port))
    adapter = _adapter(itertools.repeat(_batch(rank)), strategy=strategy, precision="fp16", rendezvous=rendezvous)
    std = adapter.std
    answer: Dict[str, List[Any]] = {"finite": [], "moved": [], "scales": []}
    for step in range(3):
        adapter.std = std * 0 if (step, rank) == (1, 1) else std
        before = _flat(adapter.weights())
        adapter.step()
        answer["finite"].append(all(np.isfinite(gradient).all() for gradient in adapter.gradients()))
        answer["moved"].append(not np.array_equal(before, _flat(adapter.weights())))
        answer["scales"].append(float(adapter.optimizer.scale.asscalar()))
    weights, momenta = _flat(adapter.weights()), _flat([array.asnumpy() for array in adapter.optimizer.momenta])
    adapter.fence()
    adapter.close()
    np.savez(Path(folder) / f"rank{rank}.npz", weights=weights, momenta=momenta, **answer)
    sys.stdout.flush()
    os._exit(0)
