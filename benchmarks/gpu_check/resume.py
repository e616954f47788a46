"""Saves a checkpoint halfway and resumes in a new process: are the weights those of an uninterrupted run?

With deterministic kernels they agree bitwise. By default cuDNN may choose another algorithm in the new process; that
difference is reported without a bound.

    python -m benchmarks.gpu_check.resume PART DEVICE SCRATCH      PART: uncut, or resumed after it
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT
from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.sections import Ask, Report
from harness.core.spec import RunSpec

STEPS, REDUCED_STEPS = 20, 3
MODES = {"deterministic": True, "as_shipped": False}


def run(ask: Ask, report: Report) -> None:
    for part in ("uncut", "resumed"):
        command = [sys.executable, "-m", "benchmarks.gpu_check.resume", part, ask.device, str(ask.scratch)]
        subprocess.run(command, cwd=ROOT, check=True)
    for mode, deterministic in MODES.items():
        uncut, resumed = (arrays(ask.scratch / f"{part}.{mode}.npz") for part in ("uncut", "resumed"))
        apart = runs.largest(uncut, resumed)
        name = f"{mode.replace('_', ' ')}, resumed against uncut, largest difference"
        report(Figure(name, apart, bound="= 0" if deterministic else None))
        moved = runs.largest(uncut, arrays(saved(ask.scratch, mode)))
        report(Figure(f"{mode.replace('_', ' ')}, largest change since the checkpoint", moved, bound="≥ 1e-06"))


def part(name: str, ask: Ask) -> None:
    steps = REDUCED_STEPS if ask.reduced else STEPS
    for mode, deterministic in MODES.items():
        folder = ask.scratch / mode
        folder.mkdir(exist_ok=True)
        first = steps if name == "resumed" else 0
        with runs.adapter_of(spec_of(ask, deterministic), ask, first_step=first) as adapter:
            if name == "resumed":
                adapter.load(folder)
            else:
                runs.train(adapter, steps)
                adapter.save(folder)
                np.savez(saved(ask.scratch, mode), *adapter.weights())
            runs.train(adapter, steps)
            np.savez(ask.scratch / f"{name}.{mode}.npz", *adapter.weights())


def spec_of(ask: Ask, deterministic: bool) -> RunSpec:
    """fp16 on a GPU, so that the checkpoint includes the loss scale."""
    data = runs.images(8 if ask.reduced else 32, samples=256 if ask.reduced else 2048, augment=True)
    batch, precision = (8, "fp32") if ask.reduced else (128, "fp16")
    return runs.spec_of(ask, "resnet20", data, batch, precision, fused=True, deterministic=deterministic)


def saved(scratch: Path, mode: str) -> Path:
    """The weights at the checkpoint."""
    return scratch / f"saved.{mode}.npz"


def arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[f"arr_{number}"].astype(np.float64) for number in range(len(file.files))]


if __name__ == "__main__":
    part(sys.argv[1], Ask(sys.argv[2], time.monotonic() + 600, Path(sys.argv[3]), ROOT / "data"))
    sys.stdout.flush()
    os._exit(0)  # see harness/worker/__main__.py
