"""Comparison of what two frameworks' networks compute, from the files of verify=true (harness/worker/checks/verify.py).

The tolerances of all comparisons are here, each with its reason. NumPy only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.base.numbers import relative
from analysis.read.row import Run

Arrays = Mapping[str, np.ndarray]

# The bounds leave room for what rounding alone does: measured with ResNet-20 and ResNet-110 at a batch of 16 of
# Fashion-MNIST, on a CPU, PyTorch with and without its convolution library (oneDNN), three to five seeds each.

# Of the first synchronised gradient of a run: the difference of its sum, and of its sum of magnitudes, by the latter.
# Rounding: up to 2e-4. A sum over two ranks instead of their mean: 1.
FIRST_GRADIENT = 1e-3
# By the largest logit, or by 1 where that is less. Rounding: up to 2e-6. BatchNorm with 1e-3 for its 1e-5: 4e-3.
LOGITS = 1e-4
# Norm of the difference by the norm. Rounding: 3e-3 to 7e-3 with ResNet-20, up to 3e-2 with ResNet-110, since it puts
# an activation near 0 on the other side of a ReLU now and then, and each time all gradients below change.
GRADIENTS = 5e-2
# Of all 20 steps, by how far the losses move from the first. Rounding, with a learning rate of 1e-4: up to 5e-4 with
# ResNet-20, 8.2e-3 with ResNet-110. A learning rate that is 10 % too large: 3.6e-2 and more; momentum of 0.85 for
# 0.9: 5.3e-2 and more.
LOSSES = 2e-2

# What is compared, and in which words it is named.
BOUNDS = {"logits": "logits", "gradients": "gradients", "losses": "loss curve"}


class Difference(NamedTuple):
    """value: relative difference; infinite if one side is not a number. bound: tolerance."""

    value: float
    bound: float

    @property
    def excess(self) -> float:
        """Above 1: they are not equal."""
        return math.inf if math.isinf(self.value) else self.value / self.bound


class Files:
    """The verify.npz files of a study's runs. References of many runs are read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = lru_cache(maxsize=32)(read_arrays)

    def differences(self, run: Run, reference: Run) -> dict[str, Difference]:
        """By the names of BOUNDS. Raises ValueError, with a sentence, where they cannot be compared."""
        return differences(self._arrays(run), self._arrays(reference))

    def _arrays(self, run: Run) -> Arrays:
        if run.verify_file is None:
            raise ValueError(f"{run.run_id} has no verify.npz")
        try:
            return self._read(self.folder / "runs" / run.run_id / run.verify_file)
        except ValueError as error:
            raise ValueError(f"{run.run_id}: {error}") from None


def differences(own: Arrays, other: Arrays) -> dict[str, Difference]:
    """By the names of BOUNDS, relative to `other`. Raises ValueError if batch, classes or steps differ."""
    if any(own[name].shape != other[name].shape for name in ("logits", "losses")):
        raise ValueError("their verify.npz hold different batches or steps")
    with np.errstate(all="ignore"):
        largest = float(np.nanmax(np.abs(other["logits"]), initial=1.0))
        return {
            "logits": Difference(_largest(own["logits"] - other["logits"]), LOGITS * largest),
            "gradients": Difference(_distance(own, other), GRADIENTS),
            "losses": Difference(_apart(own["losses"], other["losses"]), LOSSES),
        }


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """In double precision. Raises ValueError, with a sentence, for a file that is none of
    harness/worker/checks/verify.py."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.atleast_1d(np.asarray(file[name], dtype=np.float64)) for name in file.files}
    except Exception:  # a damaged file fails in as many ways as ZIP and npy have parts
        raise ValueError(f"{path.name} cannot be read") from None
    if any(name not in arrays or not arrays[name].size for name in ("logits", "losses")) or not _gradients(arrays):
        raise ValueError(f"{path.name} does not hold logits, losses and gradients")
    return arrays


def _distance(own: Arrays, other: Arrays) -> float:
    """||g - g'|| / ||g'|| over the elements of all gradients; infinite where the arrays themselves are not the same."""
    mine, theirs = _gradients(own), _gradients(other)
    if {name: a.shape for name, a in mine.items()} != {name: a.shape for name, a in theirs.items()}:
        return math.inf
    squares = sum(float(((mine[name] - theirs[name]) ** 2).sum()) for name in mine)
    scale = sum(float((array**2).sum()) for array in theirs.values())
    distance = relative(math.sqrt(squares), math.sqrt(scale))
    return math.inf if math.isnan(distance) else distance


def _apart(own: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two loss curves, by how far the other moves from its first loss."""
    apart = relative(_largest(own - other), _largest(other - other[0]))
    return math.inf if math.isnan(apart) else apart


def _largest(array: np.ndarray) -> float:
    largest = float(np.abs(array).max())  # of what holds a NaN, that
    return math.inf if math.isnan(largest) else largest


def _gradients(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if re.fullmatch(r"g[0-9]{3,}", name)}
