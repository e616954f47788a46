"""PyTorch half: hierarchical reduction without blocking."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

import forks
import torch
from builders import make_site, make_spec
from noise import batches

from harness.core.rendezvous import Rendezvous
from harness.core.spec import Placement
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter
from harness.worker.pytorch.strategies.hierarchical import Hierarchical, Threads

BATCH, STEPS, PATIENCE = 4, 3, 60.0


def held_back() -> List[Dict[str, Any]]:
    """Two nodes of one rank each. Rank 1 submits no bucket before rank 0 has submitted all of its own, which fails if
    submitting waits for rank 1. Returns each rank's report of its last step, and of
    the messages of the allreduce probe after it."""
    port = own_port()
    with tempfile.TemporaryDirectory() as folder:
        codes = forks.run(one_rank, [(rank, port, folder) for rank in range(2)])
        assert codes == [0, 0], codes
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]


def one_rank(rank: int, port: int, folder: str) -> None:
    spec = make_spec(
        model="resnet20",
        strategy="hierarchical",
        strategy_options={"bucket_mb": 0.2},
        gpus=2,
        placement=Placement(2, 1),
        global_batch=2 * BATCH,
        batch_per_gpu=BATCH,
    )
    place = Rendezvous(rank, 2, 0, 1, "127.0.0.1", port)
    handed, mean = Path(folder) / "handed", Hierarchical._mean
    counts: List[int] = []
    last: Dict[str, Any] = {"done": [], "waited": None}

    def watched(strategy: Hierarchical, bucket: Any) -> Any:
        step = len(counts)
        if step == STEPS and rank == 1 and last["waited"] is None:
            until = time.monotonic() + PATIENCE
            while not handed.exists() and time.monotonic() < until:
                time.sleep(0.01)
            last["waited"] = handed.exists()
        future = mean(strategy, bucket)
        counts[-1] += 1
        if step == STEPS:
            last["done"].append(future.done())
            if rank == 0 and counts[-1] == counts[-2]:  # the last bucket
                handed.touch()
        return future

    Hierarchical._mean = watched  # type: ignore[method-assign]
    adapter = Adapter(spec, make_site(timeout_seconds=2 * PATIENCE), place, batches(rank, BATCH, 0))
    for _ in range(STEPS):  # DDP rebuilds its buckets after the first
        counts.append(0)
        adapter.step()
    gradient_bytes = adapter.facts()["gradient_bytes"]
    adapter.allreduce(gradient_bytes)  # makes its messages
    messages = adapter.strategy.bucketed  # type: ignore[attr-defined]
    for message in messages:
        message.fill_(1.0)
    adapter.allreduce(gradient_bytes)
    last["sums"] = [float(extreme) for message in messages for extreme in (message.min(), message.max())]
    last["bytes"], last["gradient_bytes"] = sum(message.nbytes for message in messages), gradient_bytes
    adapter.allreduce_sum([0.0])
    (Path(folder) / f"{rank}.json").write_text(json.dumps({**last, "buckets": counts}))
    adapter.close()


def in_order() -> Dict[str, Any]:
    """Return what passes through two phases, the first of which is delayed, and what happens to an error in a phase."""
    seen: List[Any] = []

    def first(tensor: torch.Tensor) -> None:
        if int(tensor) == 3:
            raise ValueError("three")
        seen.append(("first", int(tensor)))

    relay = Threads([first, lambda tensor: seen.append(("second", int(tensor)))])
    futures = [relay.begin(torch.tensor(number)) for number in range(5)]
    results: List[Any] = []
    for future in futures:
        try:
            results.append(int(future.wait()))
        except ValueError as error:
            results.append(str(error))
    relay.close()
    return {
        "results": results,
        "first": [number for step, number in seen if step == "first"],
        "second": [number for step, number in seen if step == "second"],
        "alive": [thread.is_alive() for thread in relay.threads],
    }
