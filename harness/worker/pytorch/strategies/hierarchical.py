"""Node by node: gradients are summed inside each node, then between the nodes, then handed out inside."""

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
    """One message per node crosses the network, however many GPUs a node has (Goyal et al. 2017, section 4.1). While
    one bucket crosses it, the next is summed inside the node, and backward goes on."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        # Ranks are placed evenly, node by node (harness/plan/plan.py).
        per_node = rendezvous.local_world_size
        leaders = range(0, self.world_size, per_node)
        self.leader = rendezvous.rank - rendezvous.local_rank
        self.leads = rendezvous.local_rank == 0
        # Each step has a group of its own, since messages of one group follow each other: the next bucket's sum would
        # wait for this one's way back. Every rank makes every group, in the same order: torch wants it so.
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

    def reduction(self) -> Optional[Reduction]:
        return self._mean

    def _mean(self, bucket: dist.GradBucket) -> Future:
        return self.relay.begin(bucket.buffer().div_(self.world_size))

    def sum(self, tensor: torch.Tensor) -> None:
        # Backward has waited for all that it handed to the relay.
        for step in self.steps:
            step(tensor)

    def close(self) -> None:
        self.relay.close()
        super().close()


class Threads:
    """Buckets pass through the steps in order, each step in a thread of its own: for gloo, whose messages the host
    waits for. Every rank hands over the same buckets in the same order, so the messages of a group are in the same
    order on all ranks; continuations of gloo's own futures would be sent in the order in which its threads get there.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.queues: List[Any] = [SimpleQueue() for _ in steps]
        self.threads = [
            threading.Thread(target=self._work, args=(number, step), name=f"node by node {number}", daemon=True)
            for number, step in enumerate(steps)
        ]
        for thread in self.threads:
            thread.start()

    def begin(self, tensor: torch.Tensor) -> Future:
        """Does not wait. The tensor may be used again when the future is done, which then holds it."""
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
            except Exception as error:  # raised in the rank, which waits for the future
                future.set_exception(error)
                continue
            if following:
                following.put(handed)
            else:
                future.set_result(tensor)


class Streams:
    """The same for NCCL, whose messages are work of the device: each step is put on a stream of its own, which waits
    for the step before; the host waits for none."""

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
        with torch.cuda.stream(before):  # whoever waits for the future waits for what is on this stream
            future.set_result(tensor)
        return future

    def close(self) -> None:
        """Nothing is left: backward waits for every future."""
