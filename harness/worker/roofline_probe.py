"""Measure the device's peak rates within the run: a product of two square matrices, and a copy.

Runs once at the end, on all ranks at the same time, so that ranks share node resources such as memory bandwidth as they
do in training; with the run's framework, precision and threads. Sizes double until a call is long enough to be timed.
analysis/read/columns/roofline_probe.py compares steps with these rates. Operands are random: constant ones flip few
bits, so that a GPU draws less power, clocks higher, and looks faster than it is.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional, Tuple

from harness.core.events import EventWriter
from harness.core.spec import RunSpec
from harness.worker.adapter import ALIGN_BYTES, Adapter

# Smallest and largest side of the matrices and bytes of the copy, which exceed most caches. Larger on GPUs, where calls
# with smaller ones are too short, and JAX compiles for each size.
SIDES = {"cpu": (512, 16384), "cuda": (4096, 16384)}
MESSAGES = {"cpu": (2**26, 2**30), "cuda": (2**28, 2**30)}
CALL_SECONDS, BLOCK_SECONDS, BLOCKS = 0.004, 0.02, 3
# Approximate duration of the whole probe.
EXPECTED_SECONDS = 0.5

Repeat = Callable[[int], Any]


def run(spec: RunSpec, adapter: Adapter, log: EventWriter, run_seconds: float) -> None:
    """Log one event. The probe is skipped, with the reason, if it might exceed measure.probe_limit of the run so far or
    the framework offers no product. An error in it, such as memory exhaustion, is logged and does not fail the run."""
    adapter.allreduce(ALIGN_BYTES)
    adapter.fence()
    begun = time.perf_counter()
    found: Dict[str, Any] = {"flops_per_second": None, "side": None, "bytes_per_second": None, "bytes": None}
    reason = None
    limit = spec.measure.probe_limit * run_seconds
    if limit < EXPECTED_SECONDS:
        reason = f"it takes about {EXPECTED_SECONDS:g} s, and measure.probe_limit allows {limit:.3g} s"
    elif adapter.product(1) is None:
        reason = f"framework={spec.framework} offers no product of matrices to measure"
    else:
        try:
            sides, messages = SIDES[spec.cluster.device], MESSAGES[spec.cluster.device]
            rate, side = _best(adapter.product, sides, lambda n: 2.0 * n**3)
            found.update(flops_per_second=rate, side=side)
            rate, nbytes = _best(adapter.copy, messages, lambda n: 2.0 * n)
            found.update(bytes_per_second=rate, bytes=nbytes)
        except Exception as error:  # each framework raises its own type when memory is exhausted
            reason = f"{type(error).__name__}: {str(error)[:200]}"
    log.write("ceiling", precision=spec.precision, **found, seconds=time.perf_counter() - begun, reason=reason)


def _best(
    make: Callable[[int], Optional[Repeat]], sizes: Tuple[int, int], work: Callable[[int], float]
) -> Tuple[float, int]:
    """Return (best rate of a few blocks, in work per second; size used)."""
    size, largest = sizes
    while True:
        repeat = make(size)
        assert repeat is not None
        repeat(1)  # compiles or allocates
        seconds = _seconds(repeat, 1)
        if seconds >= CALL_SECONDS or 2 * size > largest:
            break
        size *= 2
    n = max(1, round(BLOCK_SECONDS / max(seconds, 1e-6)))
    return max(n * work(size) / _seconds(repeat, n) for _ in range(BLOCKS)), size


def _seconds(repeat: Repeat, n: int) -> float:
    begin = time.perf_counter()
    repeat(n)
    return max(time.perf_counter() - begin, 1e-9)
