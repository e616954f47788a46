"""Effect of DistributedDataParallel's bucket options, compared with the defaults of strategy=allreduce.

ResNet-18 for 32x32 images (11.2 million parameters, 45 MB of gradients: three buckets at PyTorch's default of 25 MB),
synthetic images without augmentation, 8 per rank, fp32, 2 ranks over gloo, one compute thread each. Every run is a
normal `python -m harness`, and its result is the throughput in the report. Each of the n = 8 rounds contains one run of
each option and one of the defaults, in changing order; ratios are taken within a round.

Two ranks on one machine's loopback cannot tell what is best between nodes or on GPUs. Unless an option is clearly
better here, PyTorch's default is kept. See RESULTS.md for the results and the machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.common import Row, paired
from benchmarks.worker import run_of_harness

N, BATCH = 8, 8
COMMON = (
    *("gpus=2", "model=resnet18", "dataset=synthetic", "dataset.augment=false", f"batch={BATCH}"),
    *("measure.warmup_steps=10", "measure.steps=60", "measure.block_steps=10"),
)
DEFAULTS = "defaults"
ARMS = {
    DEFAULTS: (),
    "bucket_mb=1": ("strategy.options.bucket_mb=1",),
    "bucket_mb=5": ("strategy.options.bucket_mb=5",),
    "bucket_mb=100": ("strategy.options.bucket_mb=100",),
    "first_bucket_mb=5": ("strategy.options.first_bucket_mb=5",),
    "bucket_view=false": ("strategy.options.bucket_view=false",),
    "static_graph=true": ("strategy.options.static_graph=true",),
}


def rows() -> list[Row]:
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(N):
            print(f"  round {number + 1} of {N}", file=sys.stderr, flush=True)
            turn = number % len(ARMS)
            for place, arm in [*enumerate(ARMS)][turn:] + [*enumerate(ARMS)][:turn]:
                run = run_of_harness(Path(folder), f"round{number}-{place}", *COMMON, *ARMS[arm])
                rates[arm].append(run["samples"] / run["seconds"])
    defaults = rates.pop(DEFAULTS)
    return [paired(f"DDP, 2 ranks, {arm}", "samples/s", ours, DEFAULTS, defaults) for arm, ours in rates.items()]
