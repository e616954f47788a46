"""PyTorch half: ranks that share a model."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import forks
import numpy as np
import torch
from builders import SYNTHETIC, make_site, make_spec
from noise import flat

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec, Placement, RunSpec
from harness.plan import memory
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter

GLOBAL_BATCH, STEPS, SAVED = 16, 3, 1
TEXT = replace(
    SYNTHETIC, name="synthetic_text", classes=256, context=16, channels=0, image_size=0, mean=(), std=(), augment=False
)
# Strategy, its options, more of the spec.
Case = Tuple[str, Dict[str, Any], Dict[str, Any]]


def against_one_process(ranks: int, cases: List[Case]) -> List[Dict[str, Any]]:
    """Return, for each case, the distance of weights and logits from those of one process with the global batch,
    relative to how far its weights moved; and whether ranks that resume from a checkpoint end with the same weights."""
    ports = [own_port() for _ in range(2 * len(cases))]
    with tempfile.TemporaryDirectory() as folder:
        codes = forks.run(one_rank, [(ranks, cases, folder, rank, ports) for rank in range(ranks)])
        assert not any(codes), codes
        alone = {}
        for case in cases:
            key = repr(case[2])
            if key not in alone:
                alone[key] = trained(make(("plain", {}, case[2]), 1), 0, own_port())
        every = [[dict(np.load(Path(folder) / f"{n}.{r}.npz")) for r in range(ranks)] for n in range(len(cases))]
    return [compared(found, alone[repr(case[2])]) for case, found in zip(cases, every)]


def compared(every: List[Dict[str, Any]], one: Dict[str, Any]) -> Dict[str, Any]:
    moved = np.linalg.norm(one["weights"] - one["start"])
    gradient = np.abs(every[0]["gradient"] - one["gradient"]).max() / np.abs(one["gradient"]).max()
    return {
        "apart": max(float(np.linalg.norm(rank["weights"] - one["weights"]) / moved) for rank in every),
        "gradient_apart": float(gradient),
        "logits_apart": max(float(np.abs(rank["logits"] - one["logits"]).max()) for rank in every),
        "loss_apart": abs(float(np.mean([rank["loss"] for rank in every])) - float(one["loss"])),
        "ranks_apart": max(float(np.abs(rank["weights"] - every[0]["weights"]).max()) for rank in every),
        "continues": all(np.array_equal(rank["weights"], rank["continued"]) for rank in every),
        "parameters": [int(rank["parameters"]) for rank in every],
        "kept": [int(rank["kept"]) for rank in every],
        "estimated": int(every[0]["estimated"]),
        "held": [int(rank["held"]) for rank in every],
        "communication": str(every[0]["communication"]),
    }


def one_rank(ranks: int, cases: List[Case], folder: str, rank: int, ports: List[int]) -> None:
    for number, case in enumerate(cases):
        saved = Path(folder) / f"saved-{number}"
        saved.mkdir(exist_ok=True)
        found = trained(make(case, ranks), rank, ports[2 * number], saved)
        again = adapter_of(make(case, ranks), rank, ports[2 * number + 1], SAVED)
        again.load(saved)
        for _ in range(SAVED, STEPS):
            again.step()
        found["continued"] = flat(again.weights())
        again.allreduce_sum([0.0])
        again.close()
        np.savez(Path(folder) / f"{number}.{rank}.npz", **found)
    sys.stdout.flush()
    os._exit(0)


def make(case: Case, ranks: int) -> RunSpec:
    strategy, options, more = case
    values = {
        "strategy": strategy,
        "strategy_options": options,
        "model": "cnn_small",
        "gpus": ranks,
        "placement": Placement(1, ranks),
        "global_batch": GLOBAL_BATCH,
        "batch_per_gpu": GLOBAL_BATCH // ranks,
        "optimizer": OptimizerSpec(lr=0.01, lr_rule="constant"),
    }
    if "optimizer" in more:
        more = {**more, "optimizer": OptimizerSpec(**more["optimizer"])}
    if more.get("model") == "gpt_tiny":
        more = {**more, "dataset": TEXT}
    return make_spec(**{**values, **more})


def trained(spec: RunSpec, rank: int, port: int, saved: Optional[Path] = None) -> Dict[str, Any]:
    """Return a rank's state after STEPS steps; with a folder, save there after SAVED steps."""
    adapter = adapter_of(spec, rank, port, 0)
    facts = adapter.facts()
    found = {"start": flat(adapter.weights()), **{name: facts[name] for name in ("parameters", "communication")}}
    found["held"] = sum(getattr(p, "_local_tensor", p).numel() for p in adapter.parameters)
    for step in range(STEPS):
        if step == SAVED and saved:
            adapter.save(saved)
        adapter.step()
        if step == 0:
            found["gradient"], found["loss"] = flat(adapter.gradients()), adapter.loss()
    found["weights"] = flat(adapter.weights())
    with adapter.evaluation():
        samples = np.random.RandomState(1).randint(0, 256, (5, *spec.dataset.sample_shape))
        found["logits"] = adapter.logits(samples.astype(np.uint8))
    found["kept"], found["estimated"] = kept_for_backward(adapter, spec, rank), memory.estimate(spec).activations
    adapter.allreduce(4)
    adapter.close()
    return found


def kept_for_backward(adapter: Adapter, spec: RunSpec, rank: int) -> int:
    """Return the bytes that autograd keeps in a step: distinct storages, without those of the parameters."""
    own = {getattr(p, "_local_tensor", p).untyped_storage().data_ptr() for p in adapter.parameters}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # kept alive, so that no other takes its address
        return tensor

    batch = adapter.to_device(*next(batches(spec, rank // spec.ranks_per_replica, STEPS)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        adapter.strategy.forward_backward(adapter.network, adapter.scaler, *batch)
    return sum(storage.nbytes() for storage in kept.values())


def adapter_of(spec: RunSpec, rank: int, port: int, first: int) -> Adapter:
    rendezvous = Rendezvous(rank, spec.gpus, rank, spec.gpus, "127.0.0.1", port)
    return Adapter(spec, make_site(), rendezvous, batches(spec, rank // spec.ranks_per_replica, first))


def batches(spec: RunSpec, replica: int, first: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of a replica from step `first` on."""
    data, own = spec.dataset, slice(replica * spec.batch_per_replica, (replica + 1) * spec.batch_per_replica)
    step = first
    while True:
        random = np.random.RandomState(step)
        samples = random.randint(0, 256, (spec.global_batch, *data.sample_shape)).astype(np.uint8)
        labels = random.randint(0, data.classes, (spec.global_batch, *([data.context] if data.context else [])))
        yield samples[own], labels[own]
        step += 1
