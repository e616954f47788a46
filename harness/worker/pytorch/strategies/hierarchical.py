"""Hierarchical allreduce: reduce gradients within each node, sum them between nodes, broadcast within each node."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.futures import Future

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.pytorch.strategies.allreduce import Allreduce, Reduction

Step = Callable[[torch.Tensor], Any]


class Hierarchical(Allreduce):
    """One message per node crosses the network, whatever the number of GPUs (Goyal et al. 2017, section 4.1). Meanwhile
    the next bucket is reduced within the node, and backward continues."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        # Ranks are placed evenly, node by node (harness/plan/plan.py).
        per_node = rendezvous.local_world_size
        leaders = range(0, self.world_size, per_node)
        self.leader = rendezvous.rank - rendezvous.local_rank
        self.leads = rendezvous.local_rank == 0
        # Each phase has its own group: messages of one group are serialised, so that the next bucket's reduction would
        # wait for this one's broadcast. Torch requires every rank to create every group in the same order.
        nodes = [list(range(first, first + per_node)) for first in leaders]
        self.inside = [dist.new_group(node) for node in nodes][self.leader // per_node]
        self.between = dist.new_group(list(leaders))
        self.out = [dist.new_group(node) for node in nodes][self.leader // per_node]
        self.steps: Tuple[Step, ...] = (
            lambda tensor: dist.reduce(tensor, self.leader, group=self.inside),
            lambda tensor: dist.all_reduce(tensor, group=self.between) if self.leads else None,
            lambda tensor: dist.broadcast(tensor, self.leader, group=self.out),
        )
        self.relay = Streams(self.steps, device) if device.type == "cuda" else Threads(self.steps)
        self.communication += f", {len(nodes)} x {per_node}"
        # Of the host, the profiler sees the thread that trains only.
        self.trace_has_parts = device.type == "cuda"

    def reduction(self) -> Optional[Reduction]:
        return self._mean

    def _mean(self, bucket: dist.GradBucket) -> Future:
        return self.relay.begin(bucket.buffer().div_(self.world_size))

    def sum(self, tensor: torch.Tensor) -> None:
        # Backward has waited for everything in the relay.
        for step in self.steps:
            step(tensor)

    def begin_sum(self, tensor: torch.Tensor) -> Any:
        return self.relay.begin(tensor)

    def close(self) -> None:
        self.relay.close()
        super().close()


class Threads:
    """A pipeline with one thread per phase, for gloo, whose messages block the host. Every rank submits the same
    buckets in the same order, so each group's messages have the same order on all ranks; continuations of gloo's
    futures would run in the order in which its threads reach them."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.queues: List[Any] = [SimpleQueue() for _ in steps]
        self.threads = [
            threading.Thread(target=self._work, args=(number, step), name=f"node by node {number}", daemon=True)
            for number, step in enumerate(steps)
        ]
        for thread in self.threads:
            thread.start()

    def begin(self, tensor: torch.Tensor) -> Future:
        """Start without waiting. The tensor may be reused once the future, which then holds it, is done."""
        future: Future = Future()
        self.queues[0].put((tensor, future))
        return future

    def close(self) -> None:
        self.queues[0].put(None)
        for thread in self.threads:
            thread.join()

    def _work(self, number: int, step: Step) -> None:
        following = self.queues[number + 1] if number + 1 < len(self.queues) else None
        while True:
            handed = self.queues[number].get()
            if handed is None:
                if following:
                    following.put(None)
                return
            tensor, future = handed
            try:
                step(tensor)
            except Exception as error:  # re-raised where the rank waits for the future
                future.set_exception(error)
                continue
            if following:
                following.put(handed)
            else:
                future.set_result(tensor)


class Streams:
    """The same for NCCL, whose messages run on the device: each phase has a stream that waits for the one before. The
    host never waits."""

    def __init__(self, steps: Sequence[Step], device: torch.device) -> None:
        self.device = device
        self.steps = [(step, torch.cuda.Stream(device)) for step in steps]

    def begin(self, tensor: torch.Tensor) -> Future:
        before = torch.cuda.current_stream(self.device)
        for step, stream in self.steps:
            stream.wait_stream(before)
            with torch.cuda.stream(stream):
                step(tensor)
            before = stream
        tensor.record_stream(before)
        future: Future = Future(devices=[self.device])
        with torch.cuda.stream(before):  # waiting for the future waits for this stream
            future.set_result(tensor)
        return future

    def close(self) -> None:
        """Backward has waited for every future."""
