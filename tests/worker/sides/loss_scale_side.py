"""PyTorch half: torch's loss scaler against this project's rule."""

from __future__ import annotations

from typing import List, Sequence, Tuple

import torch

from harness.worker.loss_scale import LossScale, updated


def scales(overflows: Sequence[bool], start: float) -> List[Tuple[float, float]]:
    """Return (torch.amp.GradScaler's scale, `updated`'s) after each step. start: initial scale; 0 for the default."""
    scaler = torch.amp.GradScaler("cpu", **({"init_scale": start} if start else {}))
    state = LossScale(start) if start else LossScale()
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    found = []
    for overflow in overflows:
        scaler.scale((weight * (float("inf") if overflow else 0.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        state = updated(state, finite=not overflow)
        found.append((scaler.get_scale(), state.scale))
    return found
