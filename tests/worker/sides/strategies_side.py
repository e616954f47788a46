"""PyTorch half: ranks that train together with PyTorch's strategies."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

import forks
import numpy as np
from builders import make_site, make_spec
from noise import batches, flat

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec, Placement
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter

BATCH, STEPS, SAVED = 4, 4, 2
Case = Tuple[str, Dict[str, Any]]


def against_allreduce(nodes: int, per_node: int, cases: List[Case]) -> List[Dict[str, Any]]:
    """Return, for each strategy with its options, the distance of its weights from DDP's after the same steps, relative
    to how far DDP's moved, and the same of rank 0 after the first step; and whether ranks that resume from a
    checkpoint end with the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        [reference, *_] = trained("allreduce", {"bucket_mb": None}, nodes, per_node, Path(folder), 0)
    moved = np.linalg.norm(reference["weights"] - reference["start"])
    stepped = np.linalg.norm(reference["stepped"] - reference["start"])
    said = []
    for strategy, options in cases:
        with tempfile.TemporaryDirectory() as folder:
            ranks = trained(strategy, options, nodes, per_node, Path(folder), 0)
            again = trained(strategy, options, nodes, per_node, Path(folder), SAVED)
        first, second, *_ = ranks
        said.append(
            {
                "apart": max(float(np.linalg.norm(rank["weights"] - reference["weights"]) / moved) for rank in ranks),
                "step_apart": float(np.linalg.norm(first["stepped"] - reference["stepped"]) / stepped),
                "ranks_apart": max(float(np.abs(rank["weights"] - first["weights"]).max()) for rank in ranks),
                "scored_apart": max(float(np.abs(rank["scored"] - first["scored"]).max()) for rank in ranks),
                "as_before_scoring": all(np.array_equal(rank["weights"], rank["weights_after"]) for rank in ranks),
                "continues": all(np.array_equal(one["weights"], two["weights"]) for one, two in zip(ranks, again)),
                "world_sizes": [int(rank["world_size"]) for rank in ranks],
                "alone_apart": float(np.abs(first["alone"] - second["alone"]).max()),
            }
        )
    return said


def trained(
    strategy: str, options: Dict[str, Any], nodes: int, per_node: int, folder: Path, first: int
) -> List[Dict[str, np.ndarray]]:
    """Return what each rank has after STEPS steps together, of which `first` were done, and saved in the folder,
    before."""
    arguments, port = (strategy, options, nodes, per_node, str(folder), first), own_port()
    codes = forks.run(one_rank, [(*arguments, rank, port) for rank in range(nodes * per_node)])
    assert not any(codes), codes
    return [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(nodes * per_node)]


def one_rank(
    strategy: str, options: Dict[str, Any], nodes: int, per_node: int, folder: str, first: int, rank: int, port: int
) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as the launcher hides GPUs from a rank on the CPU; PowerSGD looks for one
    ranks = nodes * per_node
    spec = make_spec(
        strategy=strategy,
        strategy_options=options,
        gpus=ranks,
        placement=Placement(nodes, per_node),
        global_batch=BATCH * ranks,
        batch_per_gpu=BATCH,
        # Small steps: each amplifies rounding.
        optimizer=OptimizerSpec(lr=0.001, lr_rule="constant"),
    )
    rendezvous = Rendezvous(rank, ranks, rank % per_node, per_node, "127.0.0.1", port)
    adapter = Adapter(spec, make_site(), rendezvous, batches(rank, BATCH, first))
    answer: Dict[str, Any] = {"start": flat(adapter.weights()), "world_size": adapter.facts()["world_size"]}
    if first:
        adapter.load(Path(folder))
    for step in range(first, STEPS):
        if step == SAVED and not first:
            adapter.save(Path(folder))
        adapter.step()
        if step == 0:
            answer["stepped"] = flat(adapter.weights())
    answer["weights"] = flat(adapter.weights())
    images, _ = next(batches(99, BATCH, 0))
    with adapter.evaluation():
        answer["scored"] = adapter.logits(images)
    answer["weights_after"] = flat(adapter.weights())
    adapter.allreduce(4096)
    if adapter.separable:
        adapter.step_without_sync()
    answer["alone"] = flat(adapter.weights())
    adapter.allreduce_sum([0.0])
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    adapter.close()
    sys.stdout.flush()
    os._exit(0)
