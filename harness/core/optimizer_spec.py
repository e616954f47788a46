"""Optimiser and learning-rate schedule of a run, part of `RunSpec`.

Standard library only, Python 3.8 syntax (see harness/core/spec.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Optional

from harness.core.serialization import LATER


@dataclass(frozen=True)
class OptimizerSpec:
    """Optimiser settings; the default is SGD with momentum as in He et al. 2015 (section 4.2).

    Settings that an optimiser does not use are 0, or at their default if they were added later.

    Attributes:
        name: 'sgd'; 'adam' (Kingma and Ba 2015, algorithm 1, with weight decay as part of the gradient); 'lars' (You et
            al. 2017, arXiv 1708.03888, algorithm 1, with trust coefficient `trust`).
        lr: learning rate at `lr_batch` samples per step.
        lr_rule: scaling of lr with the global batch. 'linear' (Goyal et al. 2017, section 2.1); 'sqrt' (Krizhevsky
            2014, arXiv 1404.5997, section 5); 'constant'.
        lr_peak_samples, lr_end_samples: training samples over all ranks until which the learning rate rises linearly to
            its scaled value, and then falls linearly (the one-cycle policy of Smith 2018, arXiv 1803.09820); 0: no rise
            or no fall.
        lr_start_factor, lr_end_factor: first and last learning rate, relative to the scaled value.
        label_smoothing: share of the target spread over all classes in the training loss (Szegedy et al. 2016, arXiv
            1512.00567, section 7).
        norm_bias_factor: learning rate of BatchNorm biases relative to all other parameters; their weight decay per
            step is unchanged (Page 2019, part 8; Jordan 2024, arXiv 2404.00498, section 3.4).
        lookahead_steps: every so many steps the slow weights move towards the trained weights, which continue from them
            (Zhang et al. 2019, arXiv 1907.08610, algorithm 1, with alpha = 1 - decay); 0: no slow weights.
        lookahead_decay: decay at `lr_end_samples`; it rises from 0 with the cube of the samples.
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
        """Peak learning rate after scaling: the end of the warm-up and the start of the decay."""
        if self.lr_rule == "linear":
            return self.lr * global_batch / self.lr_batch
        if self.lr_rule == "sqrt":
            return self.lr * math.sqrt(global_batch / self.lr_batch)
        return self.lr

    def learning_rate(self, global_batch: int, step: int) -> float:
        """Learning rate of optimiser step `step` (from 0), after scaling, warm-up and decay."""
        lr = self.scaled(global_batch)
        if step < self.warmup_steps:
            lr *= (step + 1) / self.warmup_steps
        if self.lr_end_samples:
            seen = (step + 0.5) * global_batch  # midpoint of the step
            risen = seen / self.lr_peak_samples if self.lr_peak_samples else 1.0
            left = (self.lr_end_samples - seen) / (self.lr_end_samples - self.lr_peak_samples)
            rising = self.lr_start_factor + (1 - self.lr_start_factor) * risen
            falling = self.lr_end_factor + (1 - self.lr_end_factor) * max(0.0, left)
            lr *= min(rising, falling)
        return lr

    def slow_share(self, global_batch: int, step: int) -> Optional[float]:
        """Decay of the slow weights after optimiser step `step` (from 0); None if they are not updated."""
        if not self.lookahead_steps or (step + 1) % self.lookahead_steps:
            return None
        done = min(1.0, (step + 1) * global_batch / self.lr_end_samples)
        return self.lookahead_decay * done**3
