"""The halves of tests that run in the TensorFlow environment (see environments.in_environment).

TensorFlow is imported where it is used, so that starting ranks is fast.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from builders import make_site, make_spec
from noise import SMALLEST

from harness.core.rendezvous import Rendezvous
from harness.core.spec import FRAMEWORK, InputSpec, RunSpec
from harness.worker.adapter import Adapter
from harness.worker.distributed.exchange import own_port
from models import catalog, initial

RANKS, BATCH = 2, 8
# Convolutions in fp16 are slow on CPUs.
SMALL_PIXELS = 8
DETERMINISTIC_STEPS = 6
OPTIONS: Dict[str, Dict[str, Any]] = {"allreduce": {"bucket_mb": 0.5}, "horovod": {"controller": "gloo"}}


def shared(names: Sequence[str]) -> Dict[str, Any]:
    """Run what TensorFlow and Keras share, in one process because starting takes longer than the tests."""
    return {
        "cuda": _refuses_cpu_instead_of_gpu(),
        "statistics": _batch_norm_statistics("tensorflow"),
        "any_number": _logits_of_any_number("tensorflow"),
        "networks": [_describe(catalog.network(name).layers(3, 10, 64)) for name in names],
    }


def alone(framework: str) -> Dict[str, Any]:
    """Run the tests of a single rank."""
    return {
        "cores": _busy_cores(framework),
        "sgd": max(_step_by_hand(framework, nesterov) for nesterov in (False, True)),
        "continued": _continues_exactly(framework),
        "bf16": _half(framework, "bf16"),
        "jit": _jit_compile(framework),
    }


def alone_in_fp16(framework: str) -> Dict[str, Any]:
    return {
        "fp16": _half(framework, "fp16"),
        "continued": _continues_exactly(framework, precision="fp16"),
        "plain": _loss_scaling(framework, jit_compile=False),
        "compiled": _loss_scaling(framework, jit_compile=True),
        "branches": [_branches(framework, precision) for precision in ("fp32", "fp16")],
    }


def _refuses_cpu_instead_of_gpu() -> str:
    """Return the message for a run that requests CUDA if TensorFlow has none."""
    from harness.worker.tensorflow import machine

    spec = _spec("tensorflow")
    try:
        machine.configure(dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, device="cuda")))
    except RuntimeError as error:
        return str(error)
    return "accepted"


def _describe(layers: catalog.Layers) -> Dict[str, Any]:
    from models import tensorflow as networks

    norms = sum(isinstance(layer, catalog.BatchNorm) for layer in catalog.flat(layers))
    network = networks.build(layers, 0, 3, 64)
    arrays = [networks.from_own_layout(variable.numpy()) for variable in networks.parameters(network)]
    return {
        "parameters": sum(array.size for array in arrays),
        "statistics": len(networks.statistics(network)) == 2 * norms,
        "initial": all(np.array_equal(a, b) for a, b in zip(arrays, initial.weights(layers, 0))),
        "logits": list(network(np.zeros((2, 64, 64, 3), np.float32)).shape),
    }


def _busy_cores(framework: str) -> float:
    """Return the mean number of busy cores over some steps."""
    batch = next(_batches(1, 32))
    adapter = _adapter(framework, itertools.repeat(batch), global_batch=32, batch_per_gpu=32)
    adapter.step()
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(5):
        adapter.step()
    adapter.fence()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    assert adapter.facts()["threads"] == 1
    return used / wall


def _step_by_hand(framework: str, nesterov: bool) -> float:
    """Return the largest difference of the weights, relative to how far they moved, from the same steps in NumPy and
    double precision with the adapter's own gradients."""
    optimizer = dataclasses.replace(
        make_spec().optimizer, lr=0.01, lr_batch=16, weight_decay=0.1, warmup_steps=3, nesterov=nesterov
    )
    adapter = _adapter(framework, _batches(4), optimizer=optimizer)
    start = [w.astype(np.float64) for w in adapter.weights()]
    expected = [w.copy() for w in start]
    velocity = [np.zeros_like(w) for w in start]
    for step in range(4):
        adapter.step()
        # The linear rule (half the rate for half the samples), and the ramp.
        rate = 0.005 * min(1, (step + 1) / 3)
        for w, v, g in zip(expected, velocity, adapter.gradients()):
            g = g + 0.1 * w
            v *= 0.9
            v += g
            w -= rate * (g + 0.9 * v if nesterov else v)
    moved = max(float(np.abs(e - s).max()) for e, s in zip(expected, start))
    return max(float(np.abs(w - e).max()) for w, e in zip(adapter.weights(), expected)) / moved


def _batch_norm_statistics(framework: str) -> List[float]:
    """Return the largest differences of the first BatchNorm's running mean and variance after one step from their
    definition."""
    from models import tensorflow as networks

    batch = next(_batches(1))
    adapter: Any = _adapter(framework, itertools.repeat(batch))
    images, _ = adapter.to_device(*batch)
    convolution = next(layer for layer in adapter.network.layers if layer.weights)
    x = convolution(images).numpy().astype(np.float64).reshape(-1, 16)
    adapter.step()
    mean, variance = (variable.numpy() for variable in networks.statistics(adapter.network)[:2])
    # PyTorch: momentum 0.1 is the weight of the new batch, and the running variance is unbiased.
    return [
        float(np.abs(0.1 * x.mean(0) - mean).max()),
        float(np.abs(0.9 + 0.1 * x.var(0, ddof=1) - variance).max()),
    ]


def _logits_of_any_number(framework: str) -> Dict[str, Any]:
    adapter: Any = _adapter(framework, _batches(1))
    images = np.random.RandomState(1).randint(0, 256, (9, 32, 32, 3)).astype(np.uint8)
    whole = adapter.logits(images)
    single = np.concatenate([adapter.logits(images[i : i + 1]) for i in range(len(images))])
    return {
        "shape": list(whole.shape),
        "close": float(np.abs(whole - single).max()) < 1e-5,
        "traces": adapter.infer.experimental_get_tracing_count(),
    }


def _continues_exactly(framework: str, precision: str = "fp32") -> Dict[str, Any]:
    """Return the state after five steps: uninterrupted, and recreated from a checkpoint after three."""
    changes = _small(precision=precision)
    batches = list(_batches(5, pixels=SMALL_PIXELS))
    whole: Any = _adapter(framework, iter(batches), **changes)
    first: Any = _adapter(framework, iter(batches), **changes)
    for adapter in (whole, first) if precision == "fp16" else ():
        adapter.scaling.scale.assign(2.0**9)  # differs from the initial scale
    for _ in range(5):
        whole.step()
    for _ in range(3):
        first.step()
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second: Any = _adapter(framework, iter(batches[3:]), seed=1, **changes)
        second.load(Path(folder))
    for _ in range(2):
        second.step()
    equal = all(np.array_equal(a, b) for a, b in zip(whole.weights(), second.weights()))
    images = batches[0][0]
    return {
        "weights": equal,
        "loss": whole.loss() == second.loss(),
        "logits": bool(np.array_equal(whole.logits(images), second.logits(images))),
        "steps": second.steps,
        "traces": second.functions[True].experimental_get_tracing_count(),
        "scales": [_scale(adapter) for adapter in (whole, second)] if precision == "fp16" else None,
    }


def deterministic(framework: str, folder: str, first: int, jit_compile: bool) -> Dict[str, Any]:
    """Return the state after DETERMINISTIC_STEPS steps with batches by tf.data and two threads. first: resume from the
    folder after so many steps; 0: from the start, saving there halfway."""
    from harness.worker.data.pipelines import open_pipeline
    from harness.worker.data.readers import open_dataset

    package = importlib.import_module(f"harness.worker.{framework}")
    spec = _spec(
        framework,
        **_small(deterministic=True, cluster=dataclasses.replace(make_spec().cluster, cpus_per_gpu=2)),
        data=InputSpec(FRAMEWORK, 1, 2),
        framework_options={"jit_compile": jit_compile},
    )
    pipeline = open_pipeline(spec, open_dataset(spec.dataset, None, 0)[0], 0, first, package.PIPELINES)
    adapter: Any = package.Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port()), pipeline)
    pipeline.start()
    if first:
        adapter.load(Path(folder))
    for step in range(first, DETERMINISTIC_STEPS):
        if not first and step == DETERMINISTIC_STEPS // 2:
            adapter.save(Path(folder))
        adapter.step()
    learned = hashlib.sha256(_flat(adapter.weights()).tobytes()).hexdigest()
    return {"learned": learned, "loss": adapter.loss(), "held": _held()}


def _held() -> bool:
    """Return whether TensorFlow rejects non-deterministic operations, such as reading a clock."""
    import tensorflow as tf

    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return True
    return False


def _scale(adapter: Any) -> List[float]:
    return [float(adapter.scaling.scale), float(adapter.scaling.good_steps)]


def _loss_scaling(framework: str, jit_compile: bool) -> Dict[str, Any]:
    """Compare fp16 steps, some of which overflow, with NumPy in double precision from the adapter's own gradients."""
    from harness.worker.loss_scale import GROWTH_INTERVAL, LossScale, updated

    optimizer = dataclasses.replace(make_spec().optimizer, lr=0.01, lr_batch=8, weight_decay=0.1, nesterov=True)
    changes = _small(precision="fp16", optimizer=optimizer, framework_options={"jit_compile": jit_compile})
    adapter: Any = _adapter(framework, _batches(6, pixels=SMALL_PIXELS), **changes)
    initial = _scale(adapter)
    state, kept, scales = LossScale(*initial), True, []
    start = [w.astype(np.float64) for w in adapter.weights()]
    expected = [w.copy() for w in start]
    velocity = [np.zeros_like(w) for w in start]
    for step in range(6):
        if step in (0, 3):  # without momentum, and with some
            state = LossScale(2.0**60, 5)
        elif step in (1, 4):
            state = LossScale(2.0**8, 0 if step == 1 else GROWTH_INTERVAL - 1)
        adapter.scaling.scale.assign(state.scale)
        adapter.scaling.good_steps.assign(int(state.good_steps))
        before = [variable.numpy() for variable in (*adapter.parameters, *adapter.optimizer.momentums)]
        adapter.step()
        after = [variable.numpy() for variable in (*adapter.parameters, *adapter.optimizer.momentums)]
        gradients = adapter.gradients()
        finite = all(np.isfinite(g).all() for g in gradients)
        state = updated(state, finite)
        scales.append((finite, _scale(adapter) == [*state]))
        if not finite:
            kept &= all(np.array_equal(a, b) for a, b in zip(before, after))
            continue
        for w, v, g in zip(expected, velocity, gradients):
            g = g + 0.1 * w
            v *= 0.9
            v += g
            w -= 0.01 * (g + 0.9 * v)
    moved = max(float(np.abs(e - s).max()) for e, s in zip(expected, start))
    error = max(float(np.abs(w - e).max()) for w, e in zip(adapter.weights(), expected)) / moved
    return {"initial": initial, "scales": scales, "kept": kept, "close": error < 2e-5}


def _branches(framework: str, precision: str) -> int:
    """Return the operations of a step in which a device waits for the host, or the host for a device."""
    adapter: Any = _adapter(framework, _batches(1), precision=precision)
    graph = adapter.functions[True].get_concrete_function(*adapter.to_device(*next(_batches(1)))).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    waiting = ("If", "StatelessIf", "Case", "While", "StatelessWhile", "Switch", "Assert", "PyFunc", "EagerPyFunc")
    return sum(node.op in waiting for node in nodes)


def _half(framework: str, precision: str) -> Dict[str, Any]:
    """Compare one step in bf16 or fp16 with one in fp32."""
    batch = next(_batches(1))
    wide = _adapter(framework, itertools.repeat(batch))
    wide.step()
    narrow: Any = _adapter(framework, itertools.repeat(batch), precision=precision)
    narrow.step()
    kept = [*narrow.parameters, *narrow.optimizer.momentums, *narrow.last[1], narrow.last[0]]
    a, b = _flat(wide.gradients()), _flat(narrow.gradients())
    return {
        "types": sorted({value.dtype.name for value in kept}),
        "computes_in": next(layer for layer in narrow.network.layers if layer.weights).compute_dtype,
        "close": float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) > 0.9,
        "loss": abs(wide.loss() - narrow.loss()) < 0.1,
        "multiplies": narrow.product(8)(1).dtype.name,
    }


def _jit_compile(framework: str) -> bool:
    """Return whether a step compiled by XLA agrees with an uncompiled one, within XLA's arithmetic, which can switch
    ReLUs."""
    batch = next(_batches(1))
    plain, compiled = (
        _adapter(framework, itertools.repeat(batch), framework_options={"jit_compile": jit}) for jit in (False, True)
    )
    plain.step()
    compiled.step()
    return _relative(_flat(compiled.gradients()), _flat(plain.gradients())) < 5e-2


def _spec(framework: str, **changes: Any) -> RunSpec:
    values: Dict[str, Any] = {
        "gpus": 1,
        "global_batch": BATCH,
        "strategy": "plain",
        "framework_options": {"jit_compile": False},
        "model": SMALLEST,
        **changes,
    }
    options = {**OPTIONS.get(values["strategy"], {}), **values.pop("strategy_options", {})}
    return make_spec(framework=framework, environment="tensorflow", strategy_options=options, **values)


def _adapter(
    framework: str, batches: Iterator[Any], rendezvous: Optional[Rendezvous] = None, **changes: Any
) -> Adapter:
    if rendezvous:
        changes.update(gpus=RANKS, global_batch=BATCH * RANKS)
    package = importlib.import_module(f"harness.worker.{framework}")
    here = rendezvous or Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port())
    adapter: Adapter = package.Adapter(_spec(framework, **changes), make_site(), here, batches)
    return adapter


def _small(**changes: Any) -> Dict[str, Any]:
    return {**changes, "dataset": dataclasses.replace(make_spec().dataset, image_size=SMALL_PIXELS)}


def _batches(number: int, size: int = BATCH, pixels: int = 32) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    random = np.random.RandomState(0)
    for _ in range(number):
        yield random.randint(0, 256, (size, pixels, pixels, 3)).astype(np.uint8), random.randint(0, 10, size)


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
