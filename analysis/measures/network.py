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

# The bounds allow for rounding, measured with ResNet-20 and ResNet-110 on batches of 16 of Fashion-MNIST, on a CPU,
# PyTorch with and without its convolution library (oneDNN), three to five seeds each.

# First synchronised gradient of a run: difference of its sum, and of its sum of magnitudes, relative to the latter.
# Rounding: up to 2e-4. A sum over two ranks instead of their mean: 1.
FIRST_GRADIENT = 1e-3
# Relative to the largest logit, or to 1 if that is less. Rounding: up to 2e-6. BatchNorm with 1e-3 for 1e-5: 4e-3.
LOGITS = 1e-4
# Norm of the difference relative to the norm. Rounding: 3e-3 to 7e-3 with ResNet-20, up to 3e-2 with ResNet-110, since
# it sometimes moves an activation near 0 across a ReLU, which changes all gradients below.
GRADIENTS = 5e-2
# Over all 20 steps, relative to how far the losses move from the first. Rounding, with a learning rate of 1e-4: up to
# 5e-4 with ResNet-20, 8.2e-3 with ResNet-110. A learning rate 10 % too large: at least 3.6e-2; momentum of 0.85 instead
# of 0.9: at least 5.3e-2.
LOSSES = 2e-2

# Compared quantities and their names in sentences.
BOUNDS = {"logits": "logits", "gradients": "gradients", "losses": "loss curve"}


class Difference(NamedTuple):
    """value: relative difference; infinite if one side is not a number. bound: tolerance."""

    value: float
    bound: float

    @property
    def excess(self) -> float:
        """Difference relative to the bound; above 1: not equal."""
        return math.inf if math.isinf(self.value) else self.value / self.bound


class Files:
    """The verify.npz files of a study's runs. References of many runs are read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = lru_cache(maxsize=32)(read_arrays)

    def differences(self, run: Run, reference: Run) -> dict[str, Difference]:
        """Compare two runs, by the names of BOUNDS. Raises ValueError with a sentence if they are not comparable."""
        return differences(self._arrays(run), self._arrays(reference))

    def _arrays(self, run: Run) -> Arrays:
        if run.verify_file is None:
            raise ValueError(f"{run.run_id} has no verify.npz")
        try:
            return self._read(self.folder / "runs" / run.run_id / run.verify_file)
        except ValueError as error:
            raise ValueError(f"{run.run_id}: {error}") from None


def differences(own: Arrays, other: Arrays) -> dict[str, Difference]:
    """Compare with `other`, by the names of BOUNDS. Raises ValueError if batch, classes or steps differ."""
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
    """Read the arrays in double precision. Raises ValueError with a sentence if harness/worker/checks/verify.py did not
    write the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.atleast_1d(np.asarray(file[name], dtype=np.float64)) for name in file.files}
    except Exception:  # a damaged ZIP or npy file raises many kinds of errors
        raise ValueError(f"{path.name} cannot be read") from None
    if any(name not in arrays or not arrays[name].size for name in ("logits", "losses")) or not _gradients(arrays):
        raise ValueError(f"{path.name} does not hold logits, losses and gradients")
    return arrays


def _distance(own: Arrays, other: Arrays) -> float:
    """Return ||g - g'|| / ||g'|| over all gradients; infinite if their names or shapes differ."""
    mine, theirs = _gradients(own), _gradients(other)
    if {name: a.shape for name, a in mine.items()} != {name: a.shape for name, a in theirs.items()}:
        return math.inf
    squares = sum(float(((mine[name] - theirs[name]) ** 2).sum()) for name in mine)
    scale = sum(float((array**2).sum()) for array in theirs.values())
    distance = relative(math.sqrt(squares), math.sqrt(scale))
    return math.inf if math.isnan(distance) else distance


def _apart(own: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two loss curves, relative to how far the other moves from its first loss."""
    apart = relative(_largest(own - other), _largest(other - other[0]))
    return math.inf if math.isnan(apart) else apart


def _largest(array: np.ndarray) -> float:
    largest = float(np.abs(array).max())  # NaN if any element is
    return math.inf if math.isnan(largest) else largest


def _gradients(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if re.fullmatch(r"g[0-9]{3,}", name)}
