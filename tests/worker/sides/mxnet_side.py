"""The halves of tests that run inside the MXNet environment (see environments.in_environment)."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from builders import make_site, make_spec
from noise import SMALLEST

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.worker.adapter import checksum
from harness.worker.distributed.exchange import own_port
from harness.worker.mxnet import machine
from harness.worker.mxnet.adapter import Adapter
from harness.worker.mxnet.optimizer import Sgd
from models import catalog
from models import mxnet as networks


def describe(name: str) -> Dict[str, Any]:
    network = networks.build(catalog.network(name).layers(3, 10, 64), 0)
    return {
        "parameters": sum(parameter.data().size for parameter in networks.parameters(network)),
        "logits": list(network(mx.nd.zeros((2, 3, 64, 64))).shape),
    }


def refuses_cpu_instead_of_gpu() -> str:
    """Return the message for a run that requests CUDA if MXNet has none."""
    spec = _spec()
    try:
        machine.context(dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, device="cuda")))
    except RuntimeError as error:
        return str(error)
    return "accepted"


def optimizer_by_hand(nesterov: bool) -> float:
    """Return the largest difference of weights, relative to how far they moved, between MXNet's kernels and PyTorch's
    formula in NumPy and double precision, after steps with a learning rate ramp."""
    spec = dataclasses.replace(
        make_spec().optimizer, lr=0.5, lr_rule="constant", weight_decay=0.1, warmup_steps=5, nesterov=nesterov
    )
    random = np.random.RandomState(0)
    start = random.standard_normal((7, 5))
    weight, ours = start.copy(), mx.nd.array(start)
    velocity = np.zeros_like(weight)
    optimizer = Sgd(spec, [ours])
    for step in range(8):
        gradient = random.standard_normal(weight.shape)
        rate = spec.learning_rate(32, step)
        optimizer.step([mx.nd.array(3 * gradient)], 1 / 3, rate)
        gradient = gradient + spec.weight_decay * weight
        velocity = spec.momentum * velocity + gradient
        weight -= rate * (gradient + spec.momentum * velocity if nesterov else velocity)
    return float(np.abs(ours.asnumpy() - weight).max() / np.abs(weight - start).max())


def aggregated() -> Dict[str, float]:
    """Compare steps that update all weights together with steps that update one weight at a time, with a learning rate
    ramp: largest difference, relative to how far they moved. groups: kernel calls; arrays: weights."""
    spec = dataclasses.replace(make_spec().optimizer, lr=0.5, lr_rule="constant", weight_decay=0.1, warmup_steps=3)
    random, shapes = np.random.RandomState(0), [(3, 2)] * 50 + [(7,), (70, 70), (9, 3, 3)]
    start = [random.standard_normal(shape) for shape in shapes]
    together = Sgd(spec, [mx.nd.array(array) for array in start])
    single = [Sgd(spec, [mx.nd.array(array)]) for array in start]
    for step in range(5):
        rate = spec.learning_rate(32, step)
        gradients = [mx.nd.array(random.standard_normal(shape)) for shape in shapes]
        together.step(gradients, 0.5, rate)
        for sgd, gradient in zip(single, gradients):
            sgd.step([gradient], 0.5, rate)
    ours = _flat([weight.asnumpy() for weight in together.weights])
    theirs = _flat([sgd.weights[0].asnumpy() for sgd in single])
    moved = np.abs(theirs - _flat(start)).max()
    return {"apart": float(np.abs(ours - theirs).max() / moved), "calls": len(together.groups), "arrays": len(start)}


def deterministic(folder: str, first: int) -> Dict[str, Any]:
    """Return the state after six steps with two threads. first: resume from the folder after so many steps; 0: from the
    start, saving there after three."""
    cluster = dataclasses.replace(make_spec().cluster, cpus_per_gpu=2)
    adapter = _adapter(itertools.islice(map(_batch, range(6)), first, None), cluster=cluster, deterministic=True)
    if first:
        adapter.load(Path(folder))
    for step in range(first, 6):
        if not first and step == 3:
            adapter.save(Path(folder))
        adapter.step()
    learned = hashlib.sha256(_flat(adapter.weights()).tobytes()).hexdigest()
    return {"learned": learned, "loss": adapter.loss()}


def continues_exactly(precision: str) -> Dict[str, Any]:
    """Return weights, momenta and statistics after five steps: with an evaluation in between, and recreated from a
    checkpoint after three. fp16: with loss scaling, the network in fp32."""
    networks.HALF = "float32"
    batches = [_batch(step) for step in range(5)]
    whole = _adapter(batches, precision=precision)
    for _ in range(5):
        whole.step()
        some, more = whole.logits(batches[0][0][:3]), whole.logits(batches[0][0])
    first = _adapter(batches, precision=precision)
    for _ in range(3):
        first.step()
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second = _adapter(batches[3:], seed=1, precision=precision)
        second.load(Path(folder))
    for _ in range(2):
        second.step()
    pairs = zip(whole._state().values(), second._state().values())
    return {
        "equal": all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in pairs),
        "steps": [whole.steps, second.steps],
        "scaling": [float(value.asscalar()) for value in second.optimizer.scaling],
        "moved": checksum(whole.weights())[0] != checksum(first.weights())[0],
        "logits_of_any_number": bool(np.allclose(some, more[:3], atol=1e-4)),
    }


def what_the_exchange_gets() -> List[int]:
    """Return the numbers of the gradients with oneDNN's layouts, which Horovod and KVStore reject, after a step and
    after a step that follows an evaluation, in which oneDNN changes the weights' layout."""
    images, labels = np.zeros((4, 64, 64, 3), np.uint8), np.zeros(4, np.int64)
    adapter = _adapter(itertools.repeat((images, labels)), model="resnet50")
    refused = []
    for _ in range(2):
        adapter.step()
        for number, gradient in enumerate(adapter.own_gradients):
            try:
                gradient.to_dlpack_for_read()
            except mx.MXNetError:
                refused.append(number)
        adapter.logits(images)
    return refused


def exchanges(strategy: str) -> Dict[str, Any]:
    """Return what two ranks with different batches know after a step together. left: processes of the KVStore that
    survive closing it."""
    codes, said = two_ranks("mxnet_side", "one_rank", strategy)
    mean = np.mean([answer["own"] for answer in said], axis=0)
    return {
        "codes": codes,
        "world_sizes": [int(answer["world_size"]) for answer in said],
        "error_of_means": max(float(np.abs(answer["means"] - mean).max()) for answer in said),
        "magnitude": float(np.abs(mean).max()),
        "same_weights": bool(np.array_equal(said[0]["weights"], said[1]["weights"])),
        "same_weights_without_exchange": bool(np.array_equal(said[0]["apart"], said[1]["apart"])),
        "totals": [answer["totals"].tolist() for answer in said],
        "statistics_of_rank_0": bool(np.array_equal(said[1]["statistics"], said[0]["own_statistics"])),
        "statistics_were_apart": not np.array_equal(said[1]["own_statistics"], said[0]["own_statistics"]),
        "left": sum(int(answer["left"]) for answer in said),
    }


def two_ranks(module: str, half: str, strategy: str) -> Tuple[List[int], List[Dict[str, Any]]]:
    """Return the exit codes and outputs of two processes that call `half` of the module."""
    ranks, port = 2, own_port()
    command = [sys.executable, "-c", f"import sys, {module}; {module}.{half}(*sys.argv[1:])", strategy, str(port)]
    with tempfile.TemporaryDirectory() as folder:
        if strategy == "mpi":
            mpirun = [str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
            processes = [subprocess.Popen([*mpirun, "-n", str(ranks), *command, folder, "from MPI"])]
        else:
            processes = [subprocess.Popen([*command, folder, str(rank)]) for rank in range(ranks)]
        codes = [process.wait(120) for process in processes]
        return codes, [dict(np.load(Path(folder) / f"rank{rank}.npz")) for rank in range(ranks)]


def _batch(seed: int) -> Tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    return random.randint(0, 256, (8, 32, 32, 3)).astype(np.uint8), random.randint(0, 10, 8)


def one_rank(strategy: str, port: str, folder: str, name: str) -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if name == "from MPI" else name)
    batch = _batch(rank)
    adapter = _adapter(
        itertools.repeat(batch), strategy=strategy, rendezvous=(rank, 2, rank, 2, "127.0.0.1", int(port))
    )
    images, labels = adapter.to_device(*batch)
    with mx.autograd.record():
        loss = adapter.criterion(adapter.network(images), labels).mean()
    loss.backward()
    own = adapter.gradients()
    adapter.step()
    adapter.allreduce(4096)
    answer = {
        "own": _flat(own),
        "means": _flat(adapter.gradients()),
        "weights": _flat(adapter.weights()),
        "world_size": adapter.facts()["world_size"],
        "own_statistics": _flat([array.asnumpy() for array in adapter.settled_statistics()]),
        # Whole numbers up to 2^24 are exact.
        "totals": adapter.allreduce_sum([1.0, 2.0**24 - 1 if rank else 1.0]) + adapter.allreduce_sum([float(rank)]),
    }
    adapter.share_statistics()
    answer["statistics"] = _flat([array.asnumpy() for array in adapter.settled_statistics()])
    adapter.step_without_sync()
    answer["apart"] = _flat(adapter.weights())
    adapter.fence()
    processes = adapter.strategy.servers.processes if strategy == "allreduce" else []
    adapter.close()
    answer["left"] = sum(process.poll() is None for process in processes)
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    sys.stdout.flush()
    os._exit(0)


def kvstore_ends_with_its_rank() -> Dict[str, Any]:
    """Kill a rank as if it ran out of memory; return how many processes it had, and how many are left."""
    code = (
        "import mxnet_side, itertools, sys, time\n"
        "adapter = mxnet_side._adapter(itertools.repeat(None), strategy='allreduce')\n"
        "print(*[process.pid for process in adapter.strategy.servers.processes], flush=True)\n"
        "time.sleep(60)\n"
    )
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    started = [int(number) for number in rank.stdout.readline().split()]
    before = sum(map(_runs, started))
    # They ignore what its supervisor sends to all processes of the rank.
    for number in started:
        os.kill(number, signal.SIGUSR2)
    time.sleep(0.5)
    ended_by_signal = before - sum(map(_runs, started))
    rank.kill()
    rank.wait()
    deadline = time.monotonic() + 60
    while any(map(_runs, started)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"started": before, "ended_by_signal": ended_by_signal, "left": sum(map(_runs, started))}


def _runs(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _spec(
    model: str = SMALLEST,
    strategy: str = "plain",
    ranks: int = 1,
    seed: int = 0,
    device: str = "cpu",
    **changes: Any,
) -> RunSpec:
    options = {"horovod": {"controller": "gloo"}}.get(strategy, {})
    return make_spec(
        framework="mxnet",
        framework_options={},
        environment="mxnet",
        model=model,
        strategy=strategy,
        strategy_options=options,
        gpus=ranks,
        global_batch=8 * ranks,
        seed=seed,
        **{"cluster": dataclasses.replace(make_spec().cluster, device=device), **changes},
    )


def _adapter(batches: Iterable[Any], rendezvous: Optional[Tuple[Any, ...]] = None, **changes: Any) -> Adapter:
    rendezvous = rendezvous or (0, 1, 0, 1, "127.0.0.1", own_port())
    return Adapter(_spec(ranks=rendezvous[1], **changes), make_site(), Rendezvous(*rendezvous), iter(batches))


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])
