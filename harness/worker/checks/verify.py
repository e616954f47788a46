"""Compute what a framework's network computes, to compare frameworks: `python -m harness.worker.checks.verify <run
directory> <file.npz>`, in one process of the framework's environment, before the run itself (verify=true).

Uses fp32, the weights of `models.initial` and the study's images in its order, and saves the logits of a fixed batch,
the gradients of the first step, and the losses of SGD steps on one batch. `analysis/measures/equal_work.py` compares
the files of all runs of a study.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Dict

import numpy as np

from harness.core.errors import RankError
from harness.core.rendezvous import Rendezvous
from harness.core.run_files import VERIFY
from harness.core.spec import Placement, RunSpec, Site, read_run
from harness.worker.adapter import Adapter
from harness.worker.data.readers import open_dataset
from harness.worker.data.stream import training_batches
from harness.worker.whitening import whiten

BATCH, STEPS = 16, 20
# Rounding errors grow with each step, the faster the larger the steps. At this rate the losses still change by 0.1 and
# more, and rounding stays far below the effect of a wrong optimiser (analysis/measures/network.py).
LEARNING_RATE = 1e-4
# Evenly spaced elements kept of a large array: enough to see a difference, in small files.
MOST_ELEMENTS = 20000


class VerifyError(RankError):
    """The process that computes the network's outputs failed."""


def run(run_dir: Path, attempt_dir: Path) -> None:
    """Run the check in its own process, since a framework that joins other ranks must not have been used alone before.
    Raises VerifyError."""
    temporary = attempt_dir / f".{VERIFY}"
    command = [sys.executable, "-m", "harness.worker.checks.verify", str(run_dir), str(temporary)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace")
        raise VerifyError(f"verify=true: the check of the network exited with code {done.returncode}:\n{said[-3000:]}")
    temporary.replace(attempt_dir / VERIFY)


def single_rank(spec: RunSpec) -> RunSpec:
    """Return the same network and data for one rank and the plain strategy."""
    return replace(
        spec,
        strategy="plain",
        strategy_options={},
        precision="fp32",
        framework_options={name: value for name, value in spec.framework_options.items() if name != "half_weights"},
        gpus=1,
        placement=Placement(1, 1),
        global_batch=BATCH,
        batch_per_gpu=BATCH,
        optimizer=replace(
            spec.optimizer,
            lr=LEARNING_RATE,
            lr_rule="constant",
            warmup_steps=0,
            lr_peak_samples=0,
            lr_end_samples=0,
            lr_start_factor=0.0,
            lr_end_factor=0.0,
            label_smoothing=0.0,
            norm_bias_factor=1.0,
            lookahead_steps=0,
            lookahead_decay=0.0,
        ),
    )


def compute(spec: RunSpec, site: Site) -> Dict[str, np.ndarray]:
    """Return logits [BATCH, classes] with initial running statistics, losses [STEPS], and gradients `g000`, `g001`, ...
    of the first step, in the order of `models.initial`."""
    train, test = open_dataset(spec.dataset, site.data_root, spec.seed)
    batches = training_batches(train, spec.dataset, BATCH, 0, 1, spec.seed)
    framework = importlib.import_module(f"harness.worker.{spec.framework}")
    adapter: Adapter = framework.Adapter(spec, site, Rendezvous(0, 1, 0, 1, "127.0.0.1", 0), batches)
    whiten(spec, train, adapter)
    found = {"logits": adapter.logits(np.ascontiguousarray(test.images(np.arange(min(BATCH, len(test))))))}
    losses = []
    for step in range(STEPS):
        # One batch, so that losses change only by the steps.
        adapter.step_on_cached_batch() if step else adapter.step()
        adapter.fence()
        losses.append(adapter.loss())
        if step == 0:
            for number, gradient in enumerate(adapter.gradients()):
                flat = gradient.reshape(-1)
                found[f"g{number:03d}"] = flat[:: max(1, -(-flat.size // MOST_ELEMENTS))].copy()
    found["losses"] = np.array(losses)
    adapter.close()
    batches.close()
    return found


if __name__ == "__main__":
    run_spec, run_site = read_run(Path(sys.argv[1]))
    with open(sys.argv[2], "wb") as file:
        np.savez(file, **compute(single_rank(run_spec), run_site))  # type: ignore[arg-type]
    sys.stdout.flush()
    os._exit(0)  # see harness/worker/__main__.py
