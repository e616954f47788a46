"""Fused optimisers of PyTorch: the half of tests that runs in the PyTorch environment."""

from __future__ import annotations

import copy
import itertools
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import torch
from builders import make_site, make_spec
from noise import batches, flat

from harness.core.rendezvous import Rendezvous
from harness.core.spec import OptimizerSpec
from harness.worker.checks import step_check
from harness.worker.distributed.exchange import own_port
from harness.worker.pytorch.adapter import Adapter

BATCH = 4


def adapter(strategy: str = "plain", options: Any = None, fused: bool = True, **changes: Any) -> Adapter:
    """One rank, ResNet-20 in channels_last, SGD with momentum."""
    spec = make_spec(
        **{
            "framework_options": {"compile": False, "channels_last": True, "fused": fused},
            "strategy": strategy,
            "strategy_options": options or {},
            "gpus": 1,
            "global_batch": BATCH,
            "batch_per_gpu": BATCH,
            "optimizer": OptimizerSpec(lr=0.001, lr_rule="constant", weight_decay=0.01),
            **changes,
        }
    )
    return Adapter(spec, make_site(), Rendezvous(0, 1, 0, 1, "127.0.0.1", own_port()), batches(0, BATCH))


def skipped_first_step() -> Dict[str, Any]:
    """In fp16, with uninitialised memory filled with NaN and the first step skipped by the loss scaler, fused and not:
    return whether weights and momentum are equal after one more step, and the weights' relative distance after three.
    For equal step sizes, and with other ones for some weights."""
    # Fill memory that torch does not initialise with NaN.
    torch.use_deterministic_algorithms(True)
    found = {}
    for factor in (1.0, 4.0):
        optimizer = OptimizerSpec(lr=0.001, lr_rule="constant", weight_decay=0.01, norm_bias_factor=factor)
        own, fused = (adapter(fused=f, precision="fp16", optimizer=optimizer) for f in (False, True))
        start, skipped = flat(own.weights()), []
        for trained in (own, fused):
            # The first scale overflows every gradient, the second none; powers of 2 do not round.
            trained.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, backoff_factor=2.0**-112)
            trained.step()
            skipped.append(np.array_equal(start, flat(trained.weights())))
            trained.step()
        said = {
            "skipped": skipped,
            "equal": np.array_equal(flat(own.weights()), flat(fused.weights())),
            "momentum_equal": all(map(torch.equal, momenta(own), momenta(fused))),
        }
        for trained in (own, fused, own, fused):
            trained.step()
        moved = np.linalg.norm(flat(own.weights()) - start)
        said["apart"] = float(np.linalg.norm(flat(own.weights()) - flat(fused.weights())) / moved)
        found[str(factor)] = said
    torch.use_deterministic_algorithms(False)
    return found


def momenta(trained: Adapter) -> List[torch.Tensor]:
    state = trained.optimizer.state
    return [state[weight]["momentum_buffer"] for weight in trained.parameters]


def continues() -> Dict[str, bool]:
    """Return whether a fused run resumes bit by bit from its checkpoint: a current one; one whose momentum is
    contiguous in a network in channels_last; and one without momentum, which means zero."""
    uncut, cut = adapter(), adapter()
    for _ in range(4):
        uncut.step()
    for _ in range(2):
        cut.step()
    from_zero = adapter()
    with tempfile.TemporaryDirectory() as folder:
        cut.save(Path(folder))
        saved = torch.load(Path(folder) / "replica.pt", weights_only=True)

        def continued(change: Any, steps: int) -> np.ndarray:
            state = copy.deepcopy(saved)
            change(state)
            torch.save(state, Path(folder) / "replica.pt")
            trained = adapter()
            trained.load(Path(folder))
            trained.batches = itertools.islice(batches(0, BATCH), 2, None)
            for _ in range(steps):
                trained.step()
            return flat(trained.weights())

        def contiguous(state: Any) -> None:
            for kept in state["optimizer"]["state"].values():
                kept["momentum_buffer"] = kept["momentum_buffer"].contiguous()

        def without(state: Any) -> None:
            state["optimizer"]["state"] = {}

        from_zero.load(Path(folder))
        for momentum in momenta(from_zero):
            momentum.zero_()
        from_zero.batches = itertools.islice(batches(0, BATCH), 2, None)
        from_zero.step()
        return {
            "as saved": np.array_equal(continued(lambda _: None, 2), flat(uncut.weights())),
            "contiguous": np.array_equal(continued(contiguous, 2), flat(uncut.weights())),
            "without": np.array_equal(continued(without, 1), flat(from_zero.weights())),
        }


def layouts() -> List[str]:
    """Return the messages for gradients with other strides than their weights, in the first and in the second step."""
    said = []
    for bad_step in (0, 1):
        trained = adapter()
        trained.optimizer.register_step_pre_hook(lambda *_: None)  # another hook after the check
        learn = trained.strategy.forward_backward

        def permuting(*arguments: Any, trained: Adapter = trained, learn: Any = learn) -> Any:
            loss = learn(*arguments)
            for weight in trained.parameters:
                weight.grad = weight.grad.contiguous()
            return loss

        said.append("")
        for step in range(2):
            trained.strategy.forward_backward = permuting if step == bad_step else learn
            try:
                trained.step()
            except RuntimeError as error:
                said[-1] = str(error)
    return said


def horovod_alone() -> float:
    """Compare one rank of Horovod, fused, with an unfused optimiser, relative to how far that moved."""
    start = flat(adapter().weights())
    plain = _after_steps(adapter(fused=False))
    options = {"controller": "gloo", "compress": "none", "hierarchical": False}
    horovod = _after_steps(adapter("horovod", options))
    return float(np.linalg.norm(horovod - plain) / np.linalg.norm(plain - start))


def first_steps() -> Dict[str, Any]:
    """Return what verify=true logs about the first step of each optimiser, and the error for one that pairs gradients
    with weights by memory position."""
    logged: List[Dict[str, Any]] = []

    class Log:
        def write(self, _: str, **values: Any) -> None:
            logged.append(values)

    said = {}
    for name, momentum in (("sgd", 0.9), ("adam", 0.0), ("lars", 0.9)):
        for fused in (False, True)[: 1 + (name != "lars")]:
            optimizer = OptimizerSpec(0.01, momentum, 0.01, name == "sgd", name=name, warmup_steps=2)
            trained = adapter(fused=fused, optimizer=optimizer)
            step_check.checked(trained.step, trained.spec, trained, Log())()
            said[f"{name} {fused}"] = logged[-1]
    trained = adapter()
    trained.optimizer._optimizer_step_pre_hooks.clear()  # the fused optimiser's own check of the layouts
    learn = trained.strategy.forward_backward

    def permuting(*arguments: Any) -> Any:
        loss = learn(*arguments)
        for weight in trained.parameters:
            weight.grad = weight.grad.contiguous()
        return loss

    trained.strategy.forward_backward = permuting
    try:
        step_check.checked(trained.step, trained.spec, trained, Log())()
    except step_check.StepError as error:
        said["permuted"] = {**logged[-1], "error": str(error)}
    return said


def _after_steps(trained: Adapter) -> np.ndarray:
    for _ in range(4):
        trained.step()
    weights = flat(trained.weights())
    trained.close()
    return weights
