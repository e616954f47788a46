"""Ranks that train together with PyTorch's strategies: the half of tests that runs in the PyTorch environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
from builders import make_site, make_spec

from harness.spec import OptimizerSpec, Placement
from harness.worker.exchange import free_port
from harness.worker.pytorch.adapter import Adapter
from harness.worker.rendezvous import Rendezvous

BATCH = 4
Batch = Tuple[np.ndarray, np.ndarray]
# What a rank is told: strategy, options, nodes, ranks per node, first and last step, folder, rank, and the port.
Arguments = Tuple[str, Dict[str, Any], int, int, int, int, str]


def trained(
    strategy: str, options: Mapping[str, Any], nodes: int, per_node: int, steps: int, cut: Optional[int] = None
) -> List[Dict[str, np.ndarray]]:
    """What each rank has after so many steps together. cut: after which all leave, saved, and are started anew."""
    with tempfile.TemporaryDirectory() as folder:
        for first, last in ((0, steps),) if cut is None else ((0, cut), (cut, steps)):
            arguments: Arguments = (strategy, dict(options), nodes, per_node, first, last, folder)
            port = free_port()
            code = "import strategies_side, sys; strategies_side.one_rank(*eval(sys.argv[1]))"
            processes = [
                subprocess.Popen([sys.executable, "-c", code, repr((*arguments, rank, port))])
                for rank in range(nodes * per_node)
            ]
            codes = [process.wait(200) for process in processes]
            assert not any(codes), codes
        return [dict(np.load(Path(folder) / f"rank{rank}.npz")) for rank in range(nodes * per_node)]


def against_allreduce(
    strategy: str, options: Mapping[str, Any], nodes: int = 1, per_node: int = 2, steps: int = 4
) -> Dict[str, Any]:
    """How far a strategy's weights are from those of DDP after the same steps, by how far DDP's moved."""
    reference = trained("allreduce", {"bucket_mb": None}, nodes, per_node, steps)
    others = trained(strategy, options, nodes, per_node, steps)
    moved = np.linalg.norm(reference[0]["weights"] - reference[0]["start"])
    return {
        "apart": max(float(np.linalg.norm(o["weights"] - reference[0]["weights"]) / moved) for o in others),
        "accuracy_apart": max(float(np.abs(o["scored"] - reference[0]["scored"]).max()) for o in others),
        "ranks_apart": max(float(np.abs(o["weights"] - others[0]["weights"]).max()) for o in others),
        "scored_apart": max(float(np.abs(o["scored"] - others[0]["scored"]).max()) for o in others),
        "as_before": all(bool(np.array_equal(o["weights"], o["weights_after"])) for o in others),
        "world_sizes": [int(o["world_size"]) for o in others],
        "without_exchange_apart": float(np.abs(others[0]["alone"] - others[1]["alone"]).max()),
    }


def continues_exactly(strategy: str, options: Mapping[str, Any]) -> bool:
    """Whether ranks that were cut after 3 of 6 steps end with the weights of those that were not, bit for bit."""
    whole = trained(strategy, options, 1, 2, 6)
    cut = trained(strategy, options, 1, 2, 6, cut=3)
    return all(np.array_equal(one["weights"], other["weights"]) for one, other in zip(whole, cut))


def one_rank(
    strategy: str,
    options: Dict[str, Any],
    nodes: int,
    per_node: int,
    first: int,
    last: int,
    folder: str,
    rank: int,
    port: int,
) -> None:
    ranks = nodes * per_node
    spec = make_spec(
        strategy=strategy,
        strategy_options=options,
        gpus=ranks,
        placement=Placement(nodes, per_node),
        global_batch=BATCH * ranks,
        batch_per_gpu=BATCH,
        # Small steps: what rounding does to a network at random grows with each.
        optimizer=OptimizerSpec(lr=0.001, lr_rule="constant"),
    )
    rendezvous = Rendezvous(rank, ranks, rank % per_node, per_node, "127.0.0.1", port)
    adapter = Adapter(spec, make_site(), rendezvous, batches(rank, first))
    answer: Dict[str, Any] = {"start": flat(adapter.weights()), "world_size": adapter.facts()["world_size"]}
    if first:
        adapter.load(Path(folder))
    for _ in range(last - first):
        adapter.step()
    answer["weights"] = flat(adapter.weights())
    images, _ = next(batches(99, 0))
    with adapter.evaluation():
        answer["scored"] = adapter.logits(images)
    answer["weights_after"] = flat(adapter.weights())
    adapter.save(Path(folder))
    adapter.allreduce(4096)
    if adapter.separable:
        adapter.step_without_sync()
    answer["alone"] = flat(adapter.weights())
    adapter.total([0.0])
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    adapter.close()
    sys.stdout.flush()
    os._exit(0)


def batches(rank: int, first: int) -> Iterator[Batch]:
    """Those of a rank from step `first` on."""
    step = first
    while True:
        random = np.random.RandomState(1000 * rank + step)
        yield random.randint(0, 256, (BATCH, 32, 32, 3)).astype(np.uint8), random.randint(0, 10, BATCH)
        step += 1


def flat(arrays: List[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])
