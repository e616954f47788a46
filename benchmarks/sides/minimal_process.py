"""The peer of a run of one rank in startup.py: a process that takes a few steps of the minimal loop and ends.

python -m benchmarks.sides.minimal_process FRAMEWORK BATCH STEPS
"""

from __future__ import annotations

import importlib
import sys

import numpy as np


def main(framework: str, batch: int, steps: int) -> None:
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (batch * steps, 32, 32, 3)).astype(np.uint8)
    labels = random.randint(0, 10, batch * steps)
    importlib.import_module(f"benchmarks.minimal.{framework}").trainer(images, labels, batch)(steps)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
