"""Schema of the configuration's `optimizer` keys; see harness/config/schema.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

MISSING: Any = "???"  # OmegaConf's mark for a value that conf/ must give


class LrRule(Enum):
    constant = "constant"
    linear = "linear"
    sqrt = "sqrt"


class OptimizerName(Enum):
    sgd = "sgd"
    adam = "adam"
    lars = "lars"


@dataclass
class Optimizer:
    name: OptimizerName = OptimizerName.sgd
    lr: float = MISSING
    momentum: float = MISSING
    weight_decay: float = MISSING
    nesterov: bool = MISSING
    lr_rule: LrRule = MISSING
    lr_batch: int = MISSING
    warmup_steps: int = MISSING
    beta1: float = MISSING
    beta2: float = MISSING
    epsilon: float = MISSING
    trust: float = MISSING
    lr_peak_samples: int = 0
    lr_end_samples: int = 0
    label_smoothing: float = 0.0
    lr_start_factor: float = 0.0
    lr_end_factor: float = 0.0
    norm_bias_factor: float = 1.0
    lookahead_steps: int = 0
    lookahead_decay: float = 0.0
