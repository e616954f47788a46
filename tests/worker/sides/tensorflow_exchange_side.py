"""The halves of tests in which two ranks of TensorFlow or Keras train together (see environments.in_environment).

TensorFlow is imported where it is used, so that starting ranks is fast.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import forks
import numpy as np
from builders import make_spec
from tensorflow_side import RANKS, SMALL_PIXELS, _adapter, _batches, _flat, _relative, _small

from harness.core.rendezvous import Rendezvous
from harness.worker.distributed.exchange import own_port

# What the ranks of a strategy do one after another, since starting them takes longest: (function, framework, options).
EXCHANGES = [("exchange", "tensorflow", {}), ("exchange", "keras", {})]
OVERFLOWS = [("overflow", "tensorflow", {}), ("overflow", "keras", {})]
COMPRESSED = [("overflow", framework, {"compress": "fp16"}) for framework in ("tensorflow", "keras")]
Job = Tuple[str, str, Dict[str, Any]]


def together(strategy: str) -> Dict[str, Any]:
    """Run all jobs of a strategy on two ranks. Return the exit codes, and for each job its summary under its name."""
    jobs: List[Job] = [*EXCHANGES, *OVERFLOWS, *(COMPRESSED if strategy == "horovod" else [])]
    # MultiWorkerMirroredStrategy finds its ranks when TensorFlow starts.
    groups = [[job] for job in jobs] if strategy == "allreduce" else [jobs]
    found: Dict[str, Any] = {"codes": []}
    for group in groups:
        codes, answers = _ranks(strategy, group)
        found["codes"] += codes
        for job, said in zip(group, answers):
            name = " ".join([job[0], job[1], *job[2].values()])
            found[name] = _exchanged(said) if job[0] == "exchange" else _overflowed(said)
    return found


def _exchanged(said: List[Dict[str, np.ndarray]]) -> Dict[str, Any]:
    """Summarise what two ranks with different batches know after a step together."""
    mean = np.mean([answer["unsynchronised"] for answer in said], axis=0)
    return {
        "world_sizes": [int(answer["world_size"]) for answer in said],
        # fp32 rounding of a sum of two.
        "means": max(_relative(answer["means"], mean) for answer in said) < 1e-6,
        "same_weights": bool(np.array_equal(said[0]["weights"], said[1]["weights"])),
        "same_weights_without_exchange": bool(np.array_equal(said[0]["apart"], said[1]["apart"])),
        "totals": [answer["totals"].tolist() for answer in said],
        "same_losses": bool(np.array_equal(said[0]["loss"], said[1]["loss"])),
        "statistics_were_apart": not np.array_equal(said[1]["own_logits"], said[0]["own_logits"]),
        "statistics_of_rank_0": bool(np.array_equal(said[1]["shared_logits"], said[0]["own_logits"])),
    }


def _overflowed(said: List[Dict[str, np.ndarray]]) -> Dict[str, Any]:
    """Summarise the state of two ranks in fp16 after a step in which one overflowed, and after the next."""
    return {
        "skipped": [bool(np.array_equal(answer["start"], answer["skipped"])) for answer in said],
        "scales": [answer["scales"].tolist() for answer in said],
        "moved": [not np.array_equal(answer["start"], answer["weights"]) for answer in said],
        "finite": bool(np.isfinite(said[0]["weights"]).all()),
        "same_weights": bool(np.array_equal(said[0]["weights"], said[1]["weights"])),
    }


def _ranks(strategy: str, jobs: List[Job]) -> Tuple[List[int], List[List[Dict[str, np.ndarray]]]]:
    """Return exit codes, and the answers of the ranks to each job."""
    arguments = [strategy, json.dumps(jobs), str(own_port())]
    with tempfile.TemporaryDirectory() as folder:
        if strategy == "mpi":
            mpirun = [str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
            program = "import sys, tensorflow_exchange_side as side; side.one_rank(*sys.argv[1:])"
            started = [*mpirun, "-n", str(RANKS), sys.executable, "-c", program, *arguments, folder, "from MPI"]
            codes = [subprocess.run(started, timeout=300).returncode]
        else:
            codes = forks.run(one_rank, [(*arguments, folder, str(rank)) for rank in range(RANKS)])
        numbers = range(len(jobs))
        return codes, [[dict(np.load(Path(folder) / f"{n}.rank{r}.npz")) for r in range(RANKS)] for n in numbers]


def one_rank(strategy: str, jobs: str, port: str, folder: str, name: str) -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if name == "from MPI" else name)
    rendezvous = Rendezvous(rank, RANKS, rank, RANKS, "127.0.0.1", int(port))
    adapter: Any = None
    for number, (function, framework, options) in enumerate(json.loads(jobs)):
        adapter, answer = globals()[f"_{function}"](framework, strategy, options, rendezvous)
        adapter.allreduce_sum([0.0])
        adapter.fence()
        np.savez(Path(folder) / f"{number}.rank{rank}.npz", **answer)
    adapter.close()  # MPI and Horovod can be finalised only once in a process
    sys.stdout.flush()
    os._exit(0)


def _overflow(framework: str, strategy: str, options: Dict[str, Any], rendezvous: Rendezvous) -> Tuple[Any, Any]:
    rank = rendezvous.rank
    (images, labels), other = itertools.islice(_batches(RANKS + 1, pixels=SMALL_PIXELS), rank, rank + 2)
    # Exceeds fp16, on the last rank only.
    too_large = images.astype(np.float32) * (1e30 if rank == RANKS - 1 else 1)
    batches = iter([(too_large, labels), other])
    changes = _small(strategy=strategy, precision="fp16", strategy_options=options)
    adapter: Any = _adapter(framework, batches, rendezvous, **changes)
    # Low enough for the second step, including compressed gradients.
    adapter.scaling.scale.assign(2.0**8)
    answer: Dict[str, Any] = {"start": _flat(adapter.weights())}
    adapter.step()
    answer["skipped"], scale = _flat(adapter.weights()), float(adapter.scaling.scale)
    adapter.step()
    answer["weights"], answer["scales"] = _flat(adapter.weights()), [scale, float(adapter.scaling.scale)]
    return adapter, answer


def _exchange(framework: str, strategy: str, options: Dict[str, Any], rendezvous: Rendezvous) -> Tuple[Any, Any]:
    rank = rendezvous.rank
    batch = list(_batches(RANKS))[rank]
    # The first steps do not change weights, so the second has this rank's part of the first one's gradients.
    optimizer = dataclasses.replace(make_spec().optimizer, lr=0.0, momentum=0.0)
    adapter: Any = _adapter(framework, itertools.repeat(batch), rendezvous, strategy=strategy, optimizer=optimizer)
    adapter.step()
    answer: Dict[str, Any] = {"means": _flat(adapter.gradients()), "loss": adapter.loss()}
    adapter.step_without_sync()
    answer["unsynchronised"] = _flat(adapter.gradients())
    answer["world_size"] = adapter.facts()["world_size"]
    adapter.spec = dataclasses.replace(adapter.spec, optimizer=dataclasses.replace(optimizer, lr=0.01))
    adapter.step()
    answer["weights"] = _flat(adapter.weights())
    adapter.allreduce(4096)
    # Whole numbers up to 2^24 are exact.
    answer["totals"] = adapter.allreduce_sum([1.0, 2.0**24 - 1 if rank else 1.0]) + adapter.allreduce_sum([float(rank)])
    images = next(_batches(1))[0]
    answer["own_logits"] = adapter.logits(images)
    adapter.share_statistics()
    answer["shared_logits"] = adapter.logits(images)
    if rank == 0:
        # No other rank takes part.
        adapter.step_without_sync()
        adapter.logits(images[:1])
    adapter.step_without_sync()
    answer["apart"] = _flat(adapter.weights())
    return adapter, answer
