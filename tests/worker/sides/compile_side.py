"""Parts of tests/worker/pytorch/test_pytorch_speed.py on torch.compile, run in the PyTorch environment."""

from __future__ import annotations

import itertools
from typing import Any, Dict

import numpy as np
import torch
from builders import make_site, make_spec
from noise import flat
from speed_side import BATCH, DDP, adapter, weights_after

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec
from harness.worker.checks.capability import VersionError
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter


def compiled_gradients() -> Dict[str, Any]:
    """Return how far a compiled run without channels_last ends from an eager one, and the errors of networks that are
    compiled wrongly: in one, a layer's gradients vanish."""
    options = {"compile": True, "channels_last": False}
    plain: Dict[str, Any] = {"options": {"channels_last": False}, "model": "cnn_small"}  # with max pooling
    eager = weights_after(4, **plain)
    moved = np.linalg.norm(eager - flat(adapter(**plain).weights()))
    apart = float(np.linalg.norm(weights_after(4, **{**plain, "options": options}) - eager) / moved)
    errors = []
    for precision in ("fp32", "bf16", "fp16"):
        trained = adapter(precision=precision, options=options, model="cnn_small")
        trained.network = Detached(trained.plain_network)
        random, statistics = torch.get_rng_state(), [tensor.clone() for tensor in trained.plain_network.buffers()]
        try:
            trained.step()
            errors.append("")
        except RuntimeError as error:
            errors.append(str(error))
        kept = all(map(torch.equal, statistics, trained.plain_network.buffers()))
        assert kept
        assert torch.equal(random, torch.get_rng_state())
    return {"apart": apart, "errors": errors}


def compiled_strategies() -> Dict[str, float]:
    """Return, by strategy, how far a compiled network's weights are from an uncompiled one's, relative to the distance
    moved: DDP that learns its graph in the first step, and sharded blocks of several shapes."""
    strategies = {"allreduce": DDP["static"], "fsdp": {"bucket_mb": None}}
    batch = np.random.default_rng(0).integers(0, 256, (BATCH, 32, 32, 3), np.uint8), np.arange(BATCH) % 10
    apart = {}
    for strategy, options in strategies.items():
        weights = []
        for compiled in (False, True):
            spec = make_spec(
                framework_options={"compile": compiled, "channels_last": True},
                strategy=strategy,
                strategy_options=options,
                model="resnet20",
                optimizer=OptimizerSpec(lr=0.001, lr_rule="constant"),
                gpus=1,
                global_batch=BATCH,
                batch_per_gpu=BATCH,
            )
            place = Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port())
            try:
                trained = Adapter(spec, make_site(), place, itertools.repeat(batch))
            except VersionError:
                break  # gloo of torch 2.7 cannot do it
            weights += [flat(trained.weights())] if not compiled else []
            for _ in range(2):
                trained.step()
            weights.append(flat(trained.weights()))
            trained.close()
        if weights:
            start, eager, other = weights
            apart[strategy] = float(np.linalg.norm(other - eager) / np.linalg.norm(eager - start))
    return apart


class Detached(torch.nn.Module):
    """A network whose first layer gets no gradient, as of a wrong compiler."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.layers = list(network.children())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.layers[0](images)
        hidden = first.detach() + 0 * first
        for layer in self.layers[1:]:
            hidden = layer(hidden)
        return hidden
