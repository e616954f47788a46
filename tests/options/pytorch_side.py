"""The options matrix: the reference in PyTorch (see train_side.py)."""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import numpy as np
import torch
from torch.nn import functional

from harness.core.spec import RunSpec
from harness.worker.pytorch import optimizers
from harness.worker.pytorch.strategies.base import AUTOCAST
from models import catalog
from models import pytorch as networks

Batch = Tuple[np.ndarray, np.ndarray]
# layout: gradients are paired with channels_last weights by position in memory. sum: sum instead of mean of the
# replicas' gradients. alone: only the first replica's gradients. momentum: 0.8 of the correct value. rate: learning
# rate 10 % too large. late: the first step is skipped.
DEFECTS = ("layout", "sum", "alone", "momentum", "rate", "late")
# Framework options that the reference supports too.
REFERENCE_OPTIONS = ("channels_last",)
STEPS = 8


def loss_scale(adapter: Any) -> float:
    return float(adapter.scaler.get_scale())


def reference(
    spec: RunSpec, batches: Callable[[int], Iterator[Batch]], defect: str = "", skipped: Sequence[Sequence[int]] = ()
) -> List[np.ndarray]:
    torch.set_num_threads(1)
    replicas = [batches(replica * spec.ranks_per_replica) for replica in range(spec.replicas)]
    if spec.strategy in ("ps_async", "ssp"):
        return _in_turns(spec, replicas, defect)
    every = spec.strategy_options["sync_every"] if spec.strategy == "local_sgd" else 0
    # With local SGD each replica skips its own steps.
    skipped = skipped or [()] * spec.gpus
    learners = [
        Learner(spec, defect, of_rank) for of_rank in (skipped[:: spec.ranks_per_replica] if every else skipped[:1])
    ]
    for step in range(STEPS):
        drawn = [next(own) for own in replicas]
        for number, learner in enumerate(learners):
            learner.step(step, drawn[number : number + 1] if every else drawn)
        if every and (step + 1) % every == 0:
            _average(learners)
    _average(learners)
    return learners[0].weights()


class Learner:
    """A network and its optimiser, neither fused nor compiled."""

    def __init__(self, spec: RunSpec, defect: str, skipped: Sequence[int] = ()) -> None:
        self.spec, self.defect, self.skipped = spec, defect, skipped
        data = spec.dataset
        torch.manual_seed(spec.seed)
        # In the run's memory format, since another one rounds convolutions differently, which a ReLU may amplify.
        channels_last = spec.framework_options["channels_last"]
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        network = networks.build(catalog.network(spec.model).layers(data.channels, data.classes, data.size), spec.seed)
        self.network = network.to(memory_format=self.memory_format)
        self.parameters = list(self.network.parameters())
        of, settings = optimizers.of(spec.optimizer, 0.0)
        if defect == "momentum":
            shorter = {"momentum": 0.8 * spec.optimizer.momentum, "betas": (0.8 * spec.optimizer.beta1, 0.999)}
            settings.update({name: value for name, value in shorter.items() if name in settings})
        self.optimizer = of(self.parameters, **settings)
        if spec.optimizer.norm_bias_factor != 1:
            biases = networks.norm_biases(self.network)
            optimizers.step_apart(self.optimizer, biases, spec.optimizer.norm_bias_factor)
        # At this scale nothing overflows: the run determines which steps are skipped.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=spec.precision == "fp16")
        self.lookahead = optimizers.Lookahead(self.parameters) if spec.optimizer.lookahead_steps else None

    def step(self, step: int, batches: List[Batch]) -> None:
        self.learn(batches)
        self.update(step)

    def learn(self, batches: List[Batch]) -> None:
        """Set the gradients to the mean over these batches."""
        batches = batches[:1] if self.defect == "alone" else batches
        gradients = [torch.zeros_like(p) for p in self.parameters]
        chunks = [chunk for batch in batches for chunk in self._chunks(batch)]
        for images, labels in chunks:
            self.network.zero_grad()
            self.scaler.scale(self._loss(images, labels)).backward()
            for total, weight in zip(gradients, self.parameters):
                total.add_(weight.grad)
        for total, weight in zip(gradients, self.parameters):
            weight.grad = total / (len(chunks) / len(batches) if self.defect == "sum" else len(chunks))
            if self.defect == "layout" and total.dim() == 4:
                weight.grad = _as_in_memory(weight.grad)

    def update(self, step: int, factor: float = 1.0) -> None:
        """Take a step. factor: of the learning rate."""
        optimizer, batch = self.spec.optimizer, self.spec.global_batch
        rate = factor * optimizer.learning_rate(batch, step) * (1.1 if self.defect == "rate" else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        if self.defect == "late" and step == 0:
            return
        if step not in self.skipped:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        share = optimizer.slow_share(batch, step)
        if self.lookahead and share is not None:
            self.lookahead.step(share)

    def weights(self) -> List[np.ndarray]:
        return [p.detach().numpy().copy() for p in self.parameters]

    def _chunks(self, batch: Batch) -> List[Batch]:
        """Split a batch into the parts that go through the network at once."""
        size = self.spec.microbatch
        images, labels = batch
        return [(images[i : i + size], labels[i : i + size]) for i in range(0, len(labels), size)]

    def _loss(self, images: np.ndarray, labels: np.ndarray) -> torch.Tensor:
        data = self.spec.dataset
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) * 255 for values in (data.mean, data.std))
        x = (torch.tensor(images).permute(0, 3, 1, 2).float() - mean) / std
        number = AUTOCAST[self.spec.precision]
        with torch.autocast("cpu", number or torch.bfloat16, enabled=number is not None):
            outputs = self.network(x.contiguous(memory_format=self.memory_format))
            smoothing = self.spec.optimizer.label_smoothing
            return functional.cross_entropy(outputs, torch.tensor(labels), label_smoothing=smoothing)


def reset() -> None:
    """Clear torch.compile's cache: it stops compiling after a number of networks."""
    if "torch._dynamo" in sys.modules:  # loading it takes seconds
        torch._dynamo.reset()


def _in_turns(spec: RunSpec, replicas: List[Any], defect: str) -> List[np.ndarray]:
    """Train with asynchronous servers whose workers push in turns, each from the weights of its last turn."""
    server = Learner(spec, defect)
    held = [[p.detach().clone() for p in server.parameters] for _ in replicas]
    optimizer, own = spec.optimizer, spec.batch_per_gpu
    for step in range(STEPS):
        for worker, batches in zip(held, replicas):
            current = [p.detach().clone() for p in server.parameters]
            _set(server.parameters, worker)
            server.learn([next(batches)])
            _set(server.parameters, current)
            server.update(step, optimizer.scaled(own) / optimizer.scaled(spec.global_batch))
            for mine, new in zip(worker, server.parameters):
                mine.copy_(new.detach())
    return server.weights()


def _average(learners: List[Learner]) -> None:
    with torch.no_grad():
        for weights in zip(*(learner.parameters for learner in learners)):
            mean = sum(weights) / len(weights)
            for weight in weights:
                weight.copy_(mean)


def _set(weights: List[Any], values: List[torch.Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values):
            weight.copy_(value)


def _as_in_memory(gradient: torch.Tensor) -> torch.Tensor:
    """Reinterpret the memory of a contiguous gradient as channels_last."""
    n, c, h, w = gradient.shape
    return gradient.contiguous().reshape(-1).view(n, h, w, c).permute(0, 3, 1, 2)
