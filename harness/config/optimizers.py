"""Convert the configuration of an optimiser to an `OptimizerSpec`."""

from __future__ import annotations

import math
from typing import Any

from harness.config.optimizer_schema import Optimizer, OptimizerName
from harness.core.errors import UserError
from harness.core.spec import OptimizerSpec

# Keys that belong to one optimiser; all others apply to every optimiser.
_OWN = {
    OptimizerName.sgd: {"momentum", "nesterov"},
    OptimizerName.adam: {"beta1", "beta2", "epsilon"},
    OptimizerName.lars: {"momentum", "trust"},
}
_EVERY_OWN = frozenset().union(*_OWN.values())
_NONE: dict[str, Any] = {"momentum": 0.0, "nesterov": False}


def spec(optimizer: Optimizer) -> OptimizerSpec:
    """Return the spec, with keys that the optimiser ignores reset, so that equivalent runs have the same run_id.

    Raises:
        UserError
    """
    name = optimizer.name
    if optimizer.nesterov and "nesterov" not in _OWN[name]:
        raise UserError(f"optimizer.nesterov=true is for optimizer.name=sgd; leave it at false with {name.name}")
    for key in ("beta1", "beta2"):
        if not 0 <= getattr(optimizer, key) < 1:
            raise UserError(f"optimizer.{key}={getattr(optimizer, key)}: give a number from 0 on and below 1")
    peak, end = optimizer.lr_peak_samples, optimizer.lr_end_samples
    if not 0 <= peak <= max(0, end - 1):
        raise UserError(
            f"optimizer.lr_peak_samples={peak} and optimizer.lr_end_samples={end}: the learning rate rises until the "
            "first and falls until the second, which must be larger; 0 for both turns this off"
        )
    if end and optimizer.warmup_steps:
        raise UserError(
            f"optimizer.lr_end_samples={end} and optimizer.warmup_steps={optimizer.warmup_steps}: both say how the "
            "learning rate rises; leave warmup_steps at 0, and give lr_peak_samples"
        )
    if not 0 <= optimizer.label_smoothing < 1:
        raise UserError(
            f"optimizer.label_smoothing={optimizer.label_smoothing:g}: give a share from 0 on and below 1, such as 0.1"
        )
    for key, after in (("lr_start_factor", "lr_peak_samples"), ("lr_end_factor", "lr_end_samples")):
        factor = getattr(optimizer, key)
        if not 0 <= factor <= 1:
            raise UserError(f"optimizer.{key}={factor:g}: give a share of the learning rate, from 0 to 1")
        if factor and not getattr(optimizer, after):
            raise UserError(
                f"optimizer.{key}={factor:g} has no effect without optimizer.{after}; give both, or neither"
            )
    if not 0 < optimizer.norm_bias_factor < math.inf:
        raise UserError(f"optimizer.norm_bias_factor={optimizer.norm_bias_factor:g}: give a number above 0")
    if optimizer.norm_bias_factor != 1 and name is not OptimizerName.sgd:
        raise UserError(
            f"optimizer.norm_bias_factor={optimizer.norm_bias_factor:g} is for optimizer.name=sgd; leave it at 1 with "
            f"{name.name}"
        )
    _check_lookahead(optimizer)
    values = {**vars(optimizer), "name": name.name, "lr_rule": optimizer.lr_rule.name}
    default = vars(OptimizerSpec())
    unused = {key: _NONE.get(key, default[key]) for key in _EVERY_OWN - _OWN[name]}
    return OptimizerSpec(**{**values, **unused})


def _check_lookahead(optimizer: Optimizer) -> None:
    steps, decay = optimizer.lookahead_steps, optimizer.lookahead_decay
    if steps < 0:
        raise UserError(f"optimizer.lookahead_steps={steps}: give a number of steps, or 0 for no lookahead")
    if not 0 <= decay < 1 or bool(steps) != bool(decay):
        raise UserError(
            f"optimizer.lookahead_steps={steps} and optimizer.lookahead_decay={decay:g}: give a number of steps and a "
            "share above 0 and below 1, or 0 for both"
        )
    if steps and not optimizer.lr_end_samples:
        raise UserError(
            f"optimizer.lookahead_steps={steps}: its decay rises until optimizer.lr_end_samples, which is 0; give that"
        )
