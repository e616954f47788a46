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

import numpy as np
from builders import make_spec
from tensorflow_side import RANKS, SMALL_PIXELS, _adapter, _batches, _flat, _relative, _small

from harness.core.rendezvous import Rendezvous
from harness.worker.distributed.exchange import own_port


def exchanges(framework: str, strategy: str) -> Dict[str, Any]:
    """Return what two ranks with different batches know after a step together."""
    codes, said = _ranks("one_rank", framework, strategy)
    mean = np.mean([answer["unsynchronised"] for answer in said], axis=0)
    return {
        "codes": codes,
        "world_sizes": [int(answer["world_size"]) for answer in said],
        "error_of_means": max(_relative(answer["means"], mean) for answer in said),
        "same_weights": bool(np.array_equal(said[0]["weights"], said[1]["weights"])),
        "same_weights_without_exchange": bool(np.array_equal(said[0]["apart"], said[1]["apart"])),
        "totals": [answer["totals"].tolist() for answer in said],
        "same_losses": bool(np.array_equal(said[0]["loss"], said[1]["loss"])),
        "statistics_were_apart": not np.array_equal(said[1]["own_logits"], said[0]["own_logits"]),
        "statistics_of_rank_0": bool(np.array_equal(said[1]["shared_logits"], said[0]["own_logits"])),
    }


def overflows(framework: str, strategy: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """Two ranks in fp16: return the state after a step in which one overflowed, and after the next."""
    codes, said = _ranks("one_rank_overflows", framework, strategy, json.dumps(options))
    return {
        "codes": codes,
        "skipped": [bool(np.array_equal(answer["start"], answer["skipped"])) for answer in said],
        "scales": [answer["scales"].tolist() for answer in said],
        "moved": [not np.array_equal(answer["start"], answer["weights"]) for answer in said],
        "finite": bool(np.isfinite(said[0]["weights"]).all()),
        "same_weights": bool(np.array_equal(said[0]["weights"], said[1]["weights"])),
    }


def one_rank_overflows(framework: str, strategy: str, options: str, port: str, folder: str, name: str) -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if name == "from MPI" else name)
    rendezvous = Rendezvous(rank, RANKS, rank, RANKS, "127.0.0.1", int(port))
    (images, labels), other = itertools.islice(_batches(RANKS + 1, pixels=SMALL_PIXELS), rank, rank + 2)
    # Exceeds fp16, on the last rank only.
    too_large = images.astype(np.float32) * (1e30 if rank == RANKS - 1 else 1)
    batches = iter([(too_large, labels), other])
    changes = _small(strategy=strategy, precision="fp16", strategy_options=json.loads(options))
    adapter: Any = _adapter(framework, batches, rendezvous, **changes)
    # Low enough for the second step, including compressed gradients.
    adapter.scaling.scale.assign(2.0**8)
    answer: Dict[str, Any] = {"start": _flat(adapter.weights())}
    adapter.step()
    answer["skipped"], scale = _flat(adapter.weights()), float(adapter.scaling.scale)
    adapter.step()
    answer["weights"], answer["scales"] = _flat(adapter.weights()), [scale, float(adapter.scaling.scale)]
    adapter.allreduce_sum([0.0])
    adapter.fence()
    adapter.close()
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    sys.stdout.flush()
    os._exit(0)


def _ranks(function: str, framework: str, strategy: str, *rest: str) -> Tuple[List[int], List[Dict[str, np.ndarray]]]:
    """Return exit codes and answers of the ranks; the function gets (framework, strategy, *rest, port, folder,
    rank)."""
    command = [sys.executable, "-c", f"import sys, tensorflow_exchange_side as side; side.{function}(*sys.argv[1:])"]
    command += [framework, strategy, *rest, str(own_port())]
    with tempfile.TemporaryDirectory() as folder:
        if strategy == "mpi":
            mpirun = [str(Path(sys.executable).parent / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
            processes = [subprocess.Popen([*mpirun, "-n", str(RANKS), *command, folder, "from MPI"])]
        else:
            processes = [subprocess.Popen([*command, folder, str(rank)]) for rank in range(RANKS)]
        codes = [process.wait(200) for process in processes]
        return codes, [dict(np.load(Path(folder) / f"rank{rank}.npz")) for rank in range(RANKS)]


def one_rank(framework: str, strategy: str, port: str, folder: str, name: str) -> None:
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"] if name == "from MPI" else name)
    rendezvous = Rendezvous(rank, RANKS, rank, RANKS, "127.0.0.1", int(port))
    batch = list(_batches(RANKS))[rank]
    # The first steps do not change weights, so the second has this rank's part of the first one's gradients.
    optimizer = dataclasses.replace(make_spec().optimizer, lr=0.0, momentum=0.0)
    adapter = _adapter(framework, itertools.repeat(batch), rendezvous, strategy=strategy, optimizer=optimizer)
    adapter.step()
    answer: Dict[str, Any] = {"means": _flat(adapter.gradients()), "loss": adapter.loss()}
    adapter.step_without_sync()
    answer["unsynchronised"] = _flat(adapter.gradients())
    answer["world_size"] = adapter.facts()["world_size"]
    adapter.spec = dataclasses.replace(adapter.spec, optimizer=dataclasses.replace(optimizer, lr=0.01))  # type: ignore[attr-defined]
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
    adapter.allreduce_sum([0.0])
    adapter.fence()
    adapter.close()
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    sys.stdout.flush()
    os._exit(0)
