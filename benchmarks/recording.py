"""Cost of recording energy, memory, device state, network and file I/O: throughput with all of it and without, in one
run.

PyTorch, ResNet-20, synthetic 32x32 images, 16 per step, fp32, one rank, one compute thread. One process alternates
blocks of 5 steps with and without recording, in changing order: n = 1000 pairs. (Default runs have blocks of 10, where
recording weighs half as much.) A block's time includes what is read before and after its steps, which in a run is not
timed at all. Reported are the median ratio over pairs with its 95 % interval from order statistics (inverted sign test,
which assumes only independent pairs), and the time of recording alone, measured as often without steps, for machines
where other load makes blocks differ by more.

Sources that a machine lacks are not read: clocks and temperature in /sys, RAPL without permission, NVML without a GPU.
Results are in RESULTS.md with the machine and its load.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.common import Row, harness, measured_as_rank, paired

PAIRS, STEPS, BATCH = 1000, 5, 16


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        (run_dir,) = harness(
            *(Path(folder), "recording", "gpus=1", "cluster=local", "cluster.device=cpu", "model=resnet20"),
            *("dataset=synthetic", "measure=smoke", "measure.warmup_steps=1", "measure.steps=1"),
            *("measure.block_steps=1", "measure.probe_steps=0", "measure.evaluate_samples=0", f"batch={BATCH}"),
        )
        seconds = measured_as_rank("recorded", run_dir, PAIRS, STEPS)
    on, off = ([BATCH * STEPS / s for s in seconds[name]] for name in ("on", "off"))
    return [
        paired("recording on, throughput", "samples/s", on, "recording off", off, "≥ 0.99 of the peer"),
        Row("recording alone, per block of steps", "ms", [1e3 * s for s in seconds["alone"]]),
        Row(
            "… of a block's seconds", "%", [100 * a / b for a, b in zip(seconds["alone"], seconds["off"], strict=True)]
        ),
    ]
