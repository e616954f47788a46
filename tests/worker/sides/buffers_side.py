"""BatchNorm's statistics under DistributedDataParallel: the half of a test that runs in the PyTorch environment."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import forks
import numpy as np
import torch
from builders import make_site, make_spec
from noise import batches, flat

from harness.core.rendezvous import Rendezvous
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter
from models import pytorch as networks

RANKS, BATCH, STEPS = 2, 4, 3


def statistics() -> Dict[str, Any]:
    """Train two ranks twice: as the harness does, and with DDP broadcasting all buffers in each forward pass."""
    ours, theirs = _trained(broadcast=False), _trained(broadcast=True)

    def same(name: str, a: Dict[str, np.ndarray], b: Dict[str, np.ndarray]) -> bool:
        return bool(np.array_equal(a[name], b[name]))

    return {
        "broadcasts": [bool(rank["broadcasts"]) for rank in (*ours, *theirs)],
        "own_while_training": not same("statistics", *ours),
        "rank_0_scores": same("scored_with", *ours) and np.array_equal(ours[0]["statistics"], ours[1]["scored_with"]),
        "as_ddp": [same(name, a, b) for name in ("weights", "scored_with", "logits") for a, b in zip(ours, theirs)],
        "saved": bool(np.array_equal(ours[0]["saved"], theirs[0]["saved"])),
    }


def _trained(broadcast: bool) -> List[Dict[str, np.ndarray]]:
    port = own_port()
    with tempfile.TemporaryDirectory() as folder:
        codes = forks.run(one_rank, [(broadcast, folder, rank, port) for rank in range(RANKS)])
        assert not any(codes), codes
        return [dict(np.load(Path(folder) / f"rank{rank}.npz")) for rank in range(RANKS)]


def one_rank(broadcast: bool, folder: str, rank: int, port: int) -> None:
    spec = make_spec(gpus=RANKS, global_batch=BATCH * RANKS, batch_per_gpu=BATCH)
    adapter = Adapter(spec, make_site(), Rendezvous(rank, RANKS, rank, RANKS, "127.0.0.1", port), batches(rank, BATCH))
    wrapped = adapter.strategy.wrapped
    if broadcast:
        wrapped.broadcast_buffers = True  # read in each forward pass; in torch 2.13 a property of its new name
    for _ in range(STEPS):
        adapter.step()
    answer: Dict[str, Any] = {"broadcasts": wrapped.will_sync_module_buffers(), "statistics": _statistics(adapter)}
    adapter.save(Path(folder))
    if rank == 0:
        saved = torch.load(Path(folder) / "replica.pt", weights_only=True)["network"]
        answer["saved"] = flat([tensor.numpy() for tensor in saved.values()])
    answer["weights"] = flat(adapter.weights())
    with adapter.evaluation():
        answer["scored_with"] = _statistics(adapter)
        answer["logits"] = adapter.logits(next(batches(99, BATCH))[0])
    np.savez(Path(folder) / f"rank{rank}.npz", **answer)
    adapter.allreduce_sum([0.0])
    adapter.close()
    os._exit(0)


def _statistics(adapter: Adapter) -> np.ndarray:
    return flat([tensor.numpy() for tensor in networks.statistics(adapter.plain_network)])
