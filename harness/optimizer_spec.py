"""How a run trains: its optimiser and the course of its learning rate, a part of `RunSpec`.

Standard library only, no syntax newer than Python 3.8: see harness/spec.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from harness.plain import LATER


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
    does neither.
    label_smoothing: share of the target that is spread over all classes (Szegedy et al. 2016, arXiv 1512.00567,
    section 7); of the training loss alone.
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

    def learning_rate(self, global_batch: int, step: int) -> float:
        """The learning rate of optimiser step `step` (from 0): scaled by the rule, ramped up linearly at first, and
        down again where it has an end."""
        lr = self.lr
        if self.lr_rule == "linear":
            lr = self.lr * global_batch / self.lr_batch
        elif self.lr_rule == "sqrt":
            lr = self.lr * math.sqrt(global_batch / self.lr_batch)
        if step < self.warmup_steps:
            lr *= (step + 1) / self.warmup_steps
        if self.lr_end_samples:
            seen = (step + 0.5) * global_batch  # in the middle of the step
            rising = seen / self.lr_peak_samples if self.lr_peak_samples else 1.0
            falling = (self.lr_end_samples - seen) / (self.lr_end_samples - self.lr_peak_samples)
            lr *= max(0.0, min(rising, falling))
        return lr
