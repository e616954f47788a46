"""How a run trains: its optimiser and the course of its learning rate, a part of `RunSpec`.

Standard library only, no syntax newer than Python 3.8: see harness/core/spec.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Optional

from harness.core.serialization import LATER


@dataclass(frozen=True)
class OptimizerSpec:
    """SGD with momentum, as He et al. 2015 (section 4.2) trained these networks, unless `name` says otherwise.

    lr: the learning rate at `lr_batch` samples per step. lr_rule: 'linear': in proportion to the global batch (Goyal et
    al. 2017, section 2.1); 'sqrt': to its square root (Krizhevsky 2014, arXiv 1404.5997, section 5); 'constant': not.
    name: 'sgd'; 'adam' (Kingma and Ba 2015, algorithm 1, with beta1, beta2 and epsilon; weight decay as part of the
    gradient); 'lars' (You et al. 2017, arXiv 1708.03888, algorithm 1, with the trust coefficient `trust`).
    What a `name` does not have is 0, or at its default where it came later.
    lr_peak_samples, lr_end_samples: the learning rate rises from 0 to what it is by the rule until so many training
    samples of all ranks, and falls to 0 until so many, linearly (one cycle of Smith 2018, arXiv 1803.09820); 0: it
    does neither. lr_start_factor, lr_end_factor: it rises from, and falls to, so much of what it is by the rule.
    label_smoothing: share of the target that is spread over all classes (Szegedy et al. 2016, arXiv 1512.00567,
    section 7); of the training loss alone.
    norm_bias_factor: the learning rate of the biases of BatchNorm is so many times that of all else; what weight decay
    takes from them in a step stays (Page 2019, part 8; Jordan 2024, arXiv 2404.00498, section 3.4).
    lookahead_steps, lookahead_decay: after every so many steps the slow weights take over a share of what is trained,
    which goes on from them (Zhang et al. 2019, arXiv 1907.08610, algorithm 1, with its alpha as 1 - decay). The decay
    rises from 0 to `lookahead_decay` at `lr_end_samples`, with the cube of the samples. 0 steps: there are none.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False
    lr_rule: str = "linear"
    lr_batch: int = 128
    warmup_steps: int = 0
    name: str = field(default="sgd", metadata=LATER)
    beta1: float = field(default=0.9, metadata=LATER)
    beta2: float = field(default=0.999, metadata=LATER)
    epsilon: float = field(default=1e-8, metadata=LATER)
    trust: float = field(default=0.001, metadata=LATER)
    lr_peak_samples: int = field(default=0, metadata=LATER)
    lr_end_samples: int = field(default=0, metadata=LATER)
    label_smoothing: float = field(default=0.0, metadata=LATER)
    lr_start_factor: float = field(default=0.0, metadata=LATER)
    lr_end_factor: float = field(default=0.0, metadata=LATER)
    norm_bias_factor: float = field(default=1.0, metadata=LATER)
    lookahead_steps: int = field(default=0, metadata=LATER)
    lookahead_decay: float = field(default=0.0, metadata=LATER)

    def scaled(self, global_batch: int) -> float:
        """The learning rate by the rule: what it rises to, where it rises, and falls from."""
        if self.lr_rule == "linear":
            return self.lr * global_batch / self.lr_batch
        if self.lr_rule == "sqrt":
            return self.lr * math.sqrt(global_batch / self.lr_batch)
        return self.lr

    def learning_rate(self, global_batch: int, step: int) -> float:
        """The learning rate of optimiser step `step` (from 0): scaled by the rule, ramped up linearly at first, and
        down again where it has an end."""
        lr = self.scaled(global_batch)
        if step < self.warmup_steps:
            lr *= (step + 1) / self.warmup_steps
        if self.lr_end_samples:
            seen = (step + 0.5) * global_batch  # in the middle of the step
            risen = seen / self.lr_peak_samples if self.lr_peak_samples else 1.0
            left = (self.lr_end_samples - seen) / (self.lr_end_samples - self.lr_peak_samples)
            rising = self.lr_start_factor + (1 - self.lr_start_factor) * risen
            falling = self.lr_end_factor + (1 - self.lr_end_factor) * max(0.0, left)
            lr *= min(rising, falling)
        return lr

    def slow_share(self, global_batch: int, step: int) -> Optional[float]:
        """Of the slow weights, what stays of them after optimiser step `step` (from 0); None: they stay as they are."""
        if not self.lookahead_steps or (step + 1) % self.lookahead_steps:
            return None
        done = min(1.0, (step + 1) * global_batch / self.lr_end_samples)
        return self.lookahead_decay * done**3
