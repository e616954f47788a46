"""Ranks that have one model between them: the half of tests that runs in the PyTorch environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
from builders import SYNTHETIC, make_site, make_spec

from harness.spec import OptimizerSpec, Placement, RunSpec
from harness.worker.data.readers import open_dataset
from harness.worker.exchange import free_port
from harness.worker.pytorch.adapter import Adapter
from harness.worker.rendezvous import Rendezvous

GLOBAL_BATCH, STEPS, SAVED = 16, 3, 1
# (strategy, its options, ranks, more of the spec)
Case = Tuple[str, Dict[str, Any], int, Dict[str, Any]]


def against_one_process(cases: List[Case]) -> List[Dict[str, Any]]:
    """Of each case: how far its weights and logits are from those of one process with the global batch, after the same
    steps, by how far its weights moved; and whether ranks that go on from what was saved in between end with the same
    weights."""
    said = []
    alone: Dict[str, Dict[str, np.ndarray]] = {}
    for case in cases:
        strategy, options, ranks, more = case
        key = repr(sorted(more.items()))
        with tempfile.TemporaryDirectory() as folder:
            if key not in alone:
                [alone[key]] = trained(("plain", {}, 1, more), Path(folder))
            one = alone[key]
            every = trained(case, Path(folder))
        moved = np.linalg.norm(one["weights"] - one["start"])
        first = every[0]
        said.append(
            {
                "apart": max(float(np.linalg.norm(rank["weights"] - one["weights"]) / moved) for rank in every),
                "gradient_apart": float(np.abs(first["gradient"] - one["gradient"]).max() / np.abs(one["gradient"]).max()),
                "logits_apart": max(float(np.abs(rank["logits"] - one["logits"]).max()) for rank in every),
                "loss_apart": abs(float(np.mean([rank["loss"] for rank in every])) - float(one["loss"])),
                "ranks_apart": max(float(np.abs(rank["weights"] - first["weights"]).max()) for rank in every),
                "continues": all(np.array_equal(rank["weights"], rank["continued"]) for rank in every),
                "parameters": [int(rank["parameters"]) for rank in every],
                "held": [int(rank["held"]) for rank in every],
                "communication": str(first["communication"]),
            }
        )
    return said


def trained(case: Case, folder: Path) -> List[Dict[str, np.ndarray]]:
    """What each rank has after STEPS steps, and after going on from what was saved after SAVED."""
    ranks = case[2]
    code = "import model_parallel_side, sys; model_parallel_side.one_rank(*eval(sys.argv[1]))"
    ports = free_port(), free_port()
    processes = [
        subprocess.Popen([sys.executable, "-c", code, repr((case, str(folder), rank, ports))]) for rank in range(ranks)
    ]
    codes = [process.wait(300) for process in processes]
    assert not any(codes), codes
    return [dict(np.load(folder / f"{case[0]}{rank}.npz")) for rank in range(ranks)]


def one_rank(case: Case, folder: str, rank: int, ports: Tuple[int, int]) -> None:
    strategy, options, ranks, more = case
    spec = make_spec(
        **{
            "strategy": strategy,
            "strategy_options": options,
            "model": "cnn_small",
            "gpus": ranks,
            "placement": Placement(1, ranks),
            "global_batch": GLOBAL_BATCH,
            "batch_per_gpu": GLOBAL_BATCH // ranks,
            "optimizer": OptimizerSpec(lr=0.01, lr_rule="constant"),
            **more,
        }
    )
    saved = Path(folder) / strategy
    saved.mkdir(exist_ok=True)
    adapter = adapter_of(spec, rank, ports[0], 0)
    facts = adapter.facts()
    answer: Dict[str, Any] = {"start": flat(adapter.weights()), "parameters": facts["parameters"]}
    answer["communication"] = facts["communication"]
    answer["held"] = sum(getattr(p, "_local_tensor", p).numel() for p in adapter.parameters)
    for step in range(STEPS):
        if step == SAVED:
            adapter.save(saved)
        adapter.step()
        if step == 0:
            answer["gradient"], answer["loss"] = flat(adapter.gradients()), adapter.loss()
    answer["weights"] = flat(adapter.weights())
    with adapter.evaluation():
        answer["logits"] = adapter.logits(np.random.RandomState(1).randint(0, 256, (5, 32, 32, 3)).astype(np.uint8))
    adapter.allreduce(4)
    adapter.close()
    again = adapter_of(spec, rank, ports[1], SAVED)
    again.load(saved)
    for _ in range(SAVED, STEPS):
        again.step()
    answer["continued"] = flat(again.weights())
    again.total([0.0])
    np.savez(Path(folder) / f"{strategy}{rank}.npz", **answer)
    again.close()
    sys.stdout.flush()
    os._exit(0)


def adapter_of(spec: RunSpec, rank: int, port: int, first: int) -> Adapter:
    rendezvous = Rendezvous(rank, spec.gpus, rank, spec.gpus, "127.0.0.1", port)
    return Adapter(spec, make_site(), rendezvous, batches(spec, rank // spec.ranks_per_replica, first))


def batches(spec: RunSpec, replica: int, first: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Those of a replica from step `first` on."""
    train, _ = open_dataset(SYNTHETIC, None, 0)
    size, step = spec.batch_per_replica, first
    while True:
        at = np.arange(step * spec.global_batch + replica * size, step * spec.global_batch + (replica + 1) * size)
        yield train.images(at), train.labels[at]
        step += 1


def flat(arrays: List[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])
