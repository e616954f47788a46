"""Pipeline parallelism: each rank of a replica has one stage of the network and processes microbatches in turn."""

from __future__ import annotations

import inspect
from typing import Any, Dict, List

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from harness.worker.checks.capability import VersionError
from harness.worker.pytorch.strategies.base import autocast, cross_entropy
from harness.worker.pytorch.strategies.model_parallel import ModelParallel
from models import catalog, division

# GPipe (Huang et al. 2019, NeurIPS): all forward, then all backward. 1F1B (Narayanan et al. 2019, PipeDream, SOSP, with
# the flush of Narayanan et al. 2021, SC21, section 2.2): the same order of sums with fewer live activations.
SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Pipeline(ModelParallel):
    """Stages are balanced by FLOPs (models/division.py). BatchNorm normalises each microbatch separately. Gradients are
    accumulated to those of the whole batch's mean loss."""

    def wrap(self, network: nn.Module) -> nn.Module:
        assert isinstance(network, nn.Sequential)
        cuts = division.stages(self.layers, self.spec.dataset.size, self.degree)
        self.shapes = [[weight.shape for weight in network[slice(*cut)].parameters()] for cut in cuts]
        begin, end = cuts[self.place]
        borders = self._borders(network, range(begin, end))
        self.received, self.sent, self.answer = borders[begin], borders[end], borders[-1]
        for other in reversed([at for at in range(len(network)) if not begin <= at < end]):
            del network[other]
        self.last = self.degree - 1
        self.stage = Stage(network, self)
        microbatches = self.spec.strategy_options["microbatches"]
        stage = PipelineStage(
            self.stage,
            self.place,
            self.degree,
            self.device,
            input_args=self._meta_microbatch(self.received, self.place > 0),
            output_args=self._meta_microbatch(self.sent, True),
            group=self.replica,
        )
        name = self.spec.strategy_options["schedule"]
        if name == "1f1b":
            self._check_messages_arrive()
        try:
            self.schedule = SCHEDULES[name](stage, microbatches, loss_fn=self._loss_of)
        except ValueError as error:
            if microbatches >= self.degree:
                raise
            raise VersionError(
                f"strategy.options.microbatches={microbatches} with {self.degree} stages needs torch 2.13 or newer, "
                f"and this environment has {torch.__version__}; give at least {self.degree} microbatches, or use a "
                "newer torch"
            ) from error
        self.communication += self._describe(cuts, name, microbatches)
        return network

    def forward_backward(
        self, network: nn.Module, scaler: Any, inputs: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        losses: List[torch.Tensor] = []
        at_end: Dict[str, Any] = {"target": labels, "losses": losses} if self.place == self.last else {}
        if "return_outputs" in inspect.signature(self.schedule.step).parameters:
            at_end["return_outputs"] = False
        if torch.__version__ < (2, 13):
            # Older versions reject inputs whose strides differ from those of the stage's example.
            inputs = inputs.contiguous()
        self.schedule.step(*([inputs] if self.place == 0 else []), **at_end)
        return torch.stack(losses).detach().mean() if losses else torch.zeros((), device=self.device)

    def loss(self, learned: torch.Tensor) -> float:
        """Broadcast the loss from the last stage."""
        dist.broadcast(learned, self.first + self.last, group=self.replica)
        return super().loss(learned)

    def logits(self, network: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        """Pass activations from stage to stage, then broadcast the last stage's output."""
        rank, samples = self.first + self.place, len(inputs)
        if self.place > 0:
            inputs = self._empty(self.received, samples)
            dist.recv(inputs, rank - 1, group=self.replica)
        outputs: torch.Tensor = self.stage(inputs)
        if self.place < self.last:
            dist.send(outputs, rank + 1, group=self.replica)
            outputs = self._empty(self.answer, samples)
        dist.broadcast(outputs, self.first + self.last, group=self.replica)
        return outputs

    def full_tensors(self, tensors: List[torch.Tensor]) -> List[torch.Tensor]:
        every: List[torch.Tensor] = []
        for stage, shapes in enumerate(self.shapes):
            sizes = [shape.numel() for shape in shapes]
            flat = torch.empty(sum(sizes), device=self.device)
            if stage == self.place:
                torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat)
            dist.broadcast(flat, self.first + stage, group=self.replica)
            every += [part.view(shape) for part, shape in zip(flat.split(sizes), shapes)]
        return every

    def gradient_bytes(self, parameters: List[nn.Parameter]) -> int:
        """Return the bytes of the largest stage."""
        return 4 * max(sum(s.numel() for s in shapes) for shapes in self.shapes) if self.replicas > 1 else 0

    def _check_messages_arrive(self) -> None:
        """Refuse 1f1b where PyTorch may lose a message: up to 2.7 it waits for the last of several at once only, which
        is all of them in NCCL, not in gloo (pytorch #132644)."""
        if torch.__version__ < (2, 8) and dist.get_backend(self.replica) == "gloo":
            raise VersionError(
                f"strategy.options.schedule=1f1b without NCCL needs torch 2.8 or newer, and this environment has "
                f"{torch.__version__}, whose stages can wait for each other for ever; take schedule=gpipe, or use a "
                "newer torch"
            )

    def _loss_of(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with autocast(self.spec, self.device):
            return cross_entropy(outputs, labels, self.spec.optimizer.label_smoothing)

    @torch.no_grad()
    def _borders(self, network: nn.Sequential, own: range) -> List[torch.Tensor]:
        """Return meta tensors of the input of each layer and the output of the last, for one sample. Moves the network
        from the host through the device; only this rank's layers stay there."""
        data = self.spec.dataset
        tokens = torch.zeros(1, data.context, dtype=torch.int64, device=self.device)
        x = tokens if data.context else torch.zeros(1, data.channels, data.size, data.size, device=self.device)
        found = [x.to("meta")]
        network.eval()
        with autocast(self.spec, self.device):
            for at, layer in enumerate(network):
                x = layer.to(self.device)(x)
                found.append(x.to("meta"))
                if at not in own:
                    layer.to("cpu")
        network.train()
        return found

    def _meta_microbatch(self, border: torch.Tensor, learns: bool) -> torch.Tensor:
        """Return a meta tensor of what crosses a border per microbatch."""
        of = self.spec.microbatch
        return torch.empty(of, *border.shape[1:], dtype=border.dtype, device="meta", requires_grad=learns)

    def _empty(self, border: torch.Tensor, samples: int) -> torch.Tensor:
        return torch.empty(samples, *border.shape[1:], dtype=border.dtype, device=self.device)

    def _describe(self, cuts: Any, schedule: str, microbatches: int) -> str:
        until = [catalog.forward_flops(self.layers[:end], self.spec.dataset.size) for _, end in cuts]
        largest = max(after - before for before, after in zip([0, *until], until)) / until[-1]
        bubble = self.last / (microbatches + self.last)
        return (
            f", pipeline of {self.degree} stage{'s' * (self.degree > 1)}{self.among_replicas()}, {schedule} with "
            f"{microbatches} microbatches (in theory, with equal stages, idle for {bubble:.0%} of a step; the largest "
            f"has {largest:.0%} of the FLOPs)"
        )


class Stage(nn.Module):
    """Makes what crosses a border contiguous, as its receiver expects, whatever layout the layers use."""

    def __init__(self, network: nn.Module, strategy: Pipeline) -> None:
        super().__init__()
        self.network = network
        self.spec, self.device = strategy.spec, strategy.device
        self.channels_last = strategy.spec.framework_options["channels_last"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with autocast(self.spec, self.device):
            return self.network(x).contiguous()
