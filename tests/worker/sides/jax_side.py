"""The halves of tests that run inside the JAX environment (see environments.in_environment)."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import forks
import jax
import numpy as np
from builders import make_site, make_spec
from noise import SMALLEST

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.worker.distributed.exchange import own_port
from harness.worker.jax import adapter as jax_adapter
from harness.worker.jax.adapter import Adapter
from harness.worker.jax.strategies import Rates
from harness.worker.loss_scale import LossScale
from models import catalog, initial
from models import jax as networks

RANKS = 2


def describe(name: str) -> Dict[str, Any]:
    layers = catalog.network(name).layers(3, 10, 64)
    params, statistics = networks.build(layers, 0)
    images = np.zeros((2, 64, 64, 3), np.float32)
    logits, new = jax.eval_shape(
        lambda *arrays: networks.forward(layers, *arrays, train=True), params, statistics, images
    )
    back = zip(networks.from_layout(params), initial.weights(layers, 0))
    return {
        "parameters": sum(array.size for array in params),
        "logits": list(logits.shape),
        "statistics": len(new) == len(statistics),
        "layout": all(np.array_equal(ours, theirs) for ours, theirs in back),
    }


def refuses_cpu_instead_of_gpu() -> str:
    """Return the message for a run that requests CUDA if JAX has none."""
    spec = _spec()
    try:
        jax_adapter._device(dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, device="cuda")))
    except RuntimeError as error:
        return str(error)
    return "accepted"


def step_by_hand() -> float:
    """Return the largest difference of the weights, relative to how far they moved, from the same steps in NumPy and
    double precision with the adapter's own gradients."""
    optimizer = dataclasses.replace(
        make_spec().optimizer, lr=0.02, lr_batch=16, weight_decay=0.1, warmup_steps=3, nesterov=True
    )
    adapter = _adapter(_batches(4), optimizer=optimizer)
    start = [w.astype(np.float64) for w in adapter.weights()]
    expected = [w.copy() for w in start]
    velocity = [np.zeros_like(w) for w in start]
    for step in range(4):
        adapter.step()
        # The linear rule (half the rate for half the samples), and the ramp.
        rate = 0.01 * min(1, (step + 1) / 3)
        for w, v, g in zip(expected, velocity, adapter.gradients()):
            g = g + 0.1 * w
            v *= 0.9
            v += g
            w -= rate * (g + 0.9 * v)
    moved = max(float(np.abs(e - s).max()) for e, s in zip(expected, start))
    return max(float(np.abs(w - e).max()) for w, e in zip(adapter.weights(), expected)) / moved


def gradients_again() -> float:
    """Return how far gradients that are computed once more are from those that the step itself returns, relative to
    their norm, with a velocity and a weight decay."""
    optimizer = dataclasses.replace(make_spec().optimizer, weight_decay=0.1)
    found = []
    for verify in (True, False):
        adapter = _adapter(_batches(2), optimizer=optimizer, verify=verify)
        adapter.step()
        adapter.step()
        assert (adapter.last_gradients is not None) is verify
        found.append(_flat(adapter.gradients()))
    returned, again = found
    return float(np.linalg.norm(again - returned) / np.linalg.norm(returned))


def optimizer_without_nesterov() -> List[float]:
    """Return a weight of 1 after one and two steps with gradient 1, velocity 0, rate 0.1, weight decay 0.5."""
    adapter = _adapter([], optimizer=dataclasses.replace(make_spec().optimizer, momentum=0.9))
    one = np.ones(1, np.float32)
    rates = Rates(learning_rate=0.1, weight_decay=0.5)
    first, velocity, _ = adapter._update([one], [0 * one], (), [one], rates)
    second, _, _ = adapter._update(first, velocity, (), [one], rates)
    return [float(first[0][0]), float(second[0][0])]


def batch_norm() -> Dict[str, float]:
    """Return the largest differences of BatchNorm's outputs and statistics from their definition in double
    precision."""
    x = np.random.RandomState(0).standard_normal((4, 3, 3, 5)).astype(np.float32) * 3 + 1
    scale, shift = np.arange(5, dtype=np.float32), np.ones(5, np.float32)
    layers, fresh = (catalog.BatchNorm(5),), [(np.zeros(5, np.float32), np.ones(5, np.float32))]
    y, [(mean, variance)] = networks.forward(layers, [scale, shift], fresh, x, train=True)
    flat = x.astype(np.float64).reshape(-1, 5)
    expected = (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5) * scale + shift
    return {
        "output": float(np.abs(y - expected).max()),
        "mean": float(np.abs(0.1 * flat.mean(0) - mean).max()),
        "variance": float(np.abs(0.9 + 0.1 * flat.var(0, ddof=1) - variance).max()),
    }


def logits_of_any_number() -> Dict[str, Any]:
    adapter = _adapter(_batches(1))
    images = np.random.RandomState(1).randint(0, 256, (19, 32, 32, 3)).astype(np.uint8)
    whole = adapter.logits(images)
    alone = np.concatenate([adapter.logits(images[i : i + 1]) for i in range(len(images))])
    return {
        "shape": list(whole.shape),
        "none": list(adapter.logits(images[:0]).shape),
        "difference": float(np.abs(whole - alone).max()),
        "compilations": adapter.evaluate._cache_size(),
    }


def computed_in(precision: str) -> Dict[str, Any]:
    """Return how XLA computes the convolutions and matrix products of a training step: types of operands and results,
    and precisions."""
    adapter = _adapter(_batches(1), precision=precision)
    step = jax.jit(lambda state, batch: adapter._gradient(state.params, state.statistics, state.scaling, *batch))
    text = step.lower(adapter.state, adapter.to_device(*next(_batches(1)))).as_text()
    lines = [line for line in text.splitlines() if re.search(r"stablehlo\.(convolution|dot_general)", line)]
    kinds = {kind for line in lines for kind in re.findall(r"tensor<(?:\d+x)*(\w+)>", line.rpartition(" : ")[2])}
    asked = {found for line in lines for found in re.findall(r"DEFAULT|HIGHEST|HIGH", line) or ["none"]}
    return {"operations": len(lines), "types": sorted(kinds), "precisions": sorted(asked)}


def bfloat16() -> Dict[str, Any]:
    """Compare one step in bf16 with one in fp32. dtypes: of the stored state."""
    batch = next(_batches(1))
    wide, narrow = _adapter(itertools.repeat(batch)), _adapter(itertools.repeat(batch), precision="bf16")
    wide.step()
    narrow.step()
    narrow.fence()
    a, b = _flat(wide.gradients()), _flat(narrow.gradients())
    return {
        "dtypes": sorted({str(array.dtype) for array in jax.tree.leaves((narrow.state, narrow.last_gradients))}),
        "cosine": float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
        "differs": not np.array_equal(a, b),
        "loss": abs(wide.loss() - narrow.loss()),
    }


def set_scale(adapter: Adapter, scale: LossScale) -> None:
    values = LossScale(np.float32(scale.scale), np.int32(scale.good_steps))  # type: ignore[arg-type]
    adapter.state = adapter.state._replace(scaling=adapter.strategy.place(values, own=False))


def deterministic(folder: str, first: int) -> Dict[str, Any]:
    """Return the state after six steps with two threads. first: resume from the folder after so many steps; 0: from the
    start, saving there after three."""
    cluster = dataclasses.replace(make_spec().cluster, cpus_per_gpu=2)
    adapter = _adapter(itertools.islice(_batches(6), first, None), cluster=cluster, deterministic=True)
    if first:
        adapter.load(Path(folder))
    for step in range(first, 6):
        if not first and step == 3:
            adapter.save(Path(folder))
        adapter.step()
    learned = hashlib.sha256(_flat(adapter.weights()).tobytes()).hexdigest()
    return {"learned": learned, "loss": adapter.loss()}


def continues_exactly(precision: str) -> Dict[str, Any]:
    """Return the state after five steps: uninterrupted, and recreated from a checkpoint after three."""
    batches = list(_batches(5))
    whole = _adapter(iter(batches), precision=precision)
    second = _adapter(iter(batches[3:]), seed=1, precision=precision)
    if precision == "fp16":
        set_scale(whole, LossScale(2.0**12, 7))
    with tempfile.TemporaryDirectory() as folder:
        for step in range(5):
            if step == 3:
                whole.save(Path(folder))
            whole.step()
        second.load(Path(folder))
    for _ in range(2):
        second.step()
    pairs = list(zip(jax.tree.leaves(whole.state), jax.tree.leaves(second.state)))
    return {
        "equal": all(np.array_equal(a, b) for a, b in pairs) and whole.loss() == second.loss(),
        "steps": [whole.steps, second.steps],
        "arrays": len(pairs),
    }


def busy_threads(cpus: int) -> Dict[str, Any]:
    """Return, over some steps, the mean number of busy cores, XLA's number of compute threads, and their smallest share
    of the CPU time of all threads."""
    spec = _spec()
    cluster = dataclasses.replace(spec.cluster, cpus_per_gpu=cpus)
    adapter = _adapter(itertools.repeat(next(_batches(1, 32))), cluster=cluster, global_batch=32, batch_per_gpu=32)
    adapter.step()
    adapter.fence()
    before, wall, used = _thread_seconds(), time.perf_counter(), time.process_time()
    for _ in range(10):
        adapter.step()
    adapter.fence()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in _thread_seconds().items()}
    computing = [seconds for (name, _), seconds in spent.items() if name.startswith("tf_XLAEigen")]
    return {
        "cores": used / wall,
        "computing": len(computing),
        "smallest_share": min(computing) / sum(spent.values()),
        "said": adapter.facts()["threads"],
    }


def exchanges(strategy: str) -> Dict[str, Any]:
    """Return what two ranks with different batches know after a step together."""
    found = two_ranks("jax_side", "one_rank", strategy)
    said, codes = found["said"], found["codes"]
    mean = np.mean([answer["own"] for answer in said], axis=0)
    error = max(float(np.abs(answer["means"] - mean).max()) for answer in said)
    return {
        "codes": codes,
        "world_sizes": [int(answer["world_size"]) for answer in said],
        "error_of_means": error / float(np.abs(mean).max()),
        "same_weights": bool(np.array_equal(said[0]["weights"], said[1]["weights"])),
        "same_weights_without_exchange": bool(np.array_equal(said[0]["apart"], said[1]["apart"])),
        "own_gradients_without_exchange": not np.array_equal(said[0]["own"], said[1]["own"]),
        "totals": [answer["totals"].tolist() for answer in said],
        "statistics_of_rank_0": bool(np.array_equal(said[1]["statistics"], said[0]["own_statistics"])),
        "statistics_were_apart": not np.array_equal(said[1]["own_statistics"], said[0]["own_statistics"]),
    }


def two_ranks(module: str, half: str, strategy: str) -> Dict[str, Any]:
    """Return the exit codes and outputs of two processes that call `half` of the module."""
    port = str(own_port())
    with tempfile.TemporaryDirectory() as folder:
        if strategy == "mpi":
            mpirun = [str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
            program = f"import sys, {module}; {module}.{half}(*sys.argv[1:])"
            started = [*mpirun, "-n", str(RANKS), sys.executable, "-c", program, strategy, port, folder, "from MPI"]
            codes = [subprocess.run(started, timeout=200).returncode]
        else:
            function = getattr(sys.modules[module], half)
            codes = forks.run(function, [(strategy, port, folder, str(rank)) for rank in range(RANKS)])
        return {"codes": codes, "said": [dict(np.load(Path(folder) / f"rank{rank}.npz")) for rank in range(RANKS)]}


def one_rank(strategy: str, port: str, folder: str, name: str) -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if name == "from MPI" else name)
    rendezvous = Rendezvous(rank, RANKS, rank, RANKS, "127.0.0.1", int(port))
    batch = list(_batches(RANKS))[rank]
    adapter = _adapter(itertools.repeat(batch), rendezvous, strategy=strategy)
    adapter.cached = adapter.to_device(*batch)
    adapter.save(Path(folder))
    adapter.allreduce_sum([0.0])  # rank 0 has written
    adapter.step_without_sync()
    own, apart = _flat(adapter.gradients()), _flat(adapter.weights())
    adapter.load(Path(folder))
    adapter.step()
    adapter.allreduce(4096)
    answer = {
        "own": own,
        "apart": apart,
        "means": _flat(adapter.gradients()),
        "weights": _flat(adapter.weights()),
        "world_size": adapter.facts()["world_size"],
        "own_statistics": _statistics(adapter),
        # Whole numbers up to 2^24 are exact.
        "totals": adapter.allreduce_sum([1.0, 2.0**24 - 1 if rank else 1.0]) + adapter.allreduce_sum([float(rank)]),
    }
    adapter.share_statistics()
    answer["statistics"] = _statistics(adapter)
    adapter.fence()
    adapter.close()
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    sys.stdout.flush()
    os._exit(0)


def _thread_seconds() -> Dict[Tuple[str, str], float]:
    """Return the CPU time of each thread of this process: (name, number) -> seconds."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            found[(task / "comm").read_text().strip(), task.name] = nanoseconds / 1e9
        except OSError:
            continue  # ended meanwhile
    return found


def _spec(**changes: Any) -> RunSpec:
    values: Dict[str, Any] = {"gpus": 1, "global_batch": 8, "strategy": "plain", "model": SMALLEST, **changes}
    return make_spec(framework="jax", framework_options={}, environment="jax", strategy_options={}, **values)


def _adapter(batches: Iterable[Any], rendezvous: Optional[Rendezvous] = None, **changes: Any) -> Adapter:
    alone = Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port())
    if rendezvous:
        changes.update(gpus=RANKS, global_batch=8 * RANKS)
    adapter = Adapter(_spec(**changes), make_site(), rendezvous or alone, iter(batches))
    adapter.wants_gradients = True
    return adapter


def _batches(number: int, size: int = 8) -> Iterable[Any]:
    random = np.random.RandomState(0)
    for _ in range(number):
        yield random.randint(0, 256, (size, 32, 32, 3)).astype(np.uint8), random.randint(0, 10, size)


def _statistics(adapter: Adapter) -> np.ndarray:
    return _flat(jax.tree.leaves(adapter.strategy.local(adapter.state.statistics)))


def _flat(arrays: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(array).ravel() for array in arrays])


def donated() -> Dict[str, Any]:
    """Return whether the arrays of a step's input state are deleted, and how many of the new weights and velocities
    reuse their memory."""
    adapter = _adapter(_batches(2))
    adapter.step()
    before = jax.tree.leaves(adapter.state)
    memory = {array.unsafe_buffer_pointer() for array in before}
    adapter.step()
    after = jax.tree.leaves((adapter.state.params, adapter.state.velocity))
    return {
        "gone": all(array.is_deleted() for array in before),
        "reused": sum(array.unsafe_buffer_pointer() in memory for array in after) / len(after),
    }
