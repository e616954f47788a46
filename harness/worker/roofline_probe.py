"""What the device gives at best, measured in the run itself: a product of two square matrices, and a copy.

Once, after all else, each rank for itself and all at the same time: what they share of a node, such as the memory's
bandwidth, they share here too, as they did while they trained. In the run's precision, by the run's framework, with the
run's threads. Sizes are doubled until a call is long enough to be timed. analysis/read/columns/roofline_probe.py
compares steps with it. Operands are random: constant ones flip few bits, so a GPU draws less power, clocks higher, and
looks faster than it is.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional, Tuple

from harness.core.events import EventWriter
from harness.core.spec import RunSpec
from harness.worker.adapter import ALIGN_BYTES, Adapter

# Sides of the matrices, and bytes of the message. The copy's least is more than most caches hold.
SIDES, MESSAGES = (512, 16384), (2**26, 2**30)
CALL_SECONDS, BLOCK_SECONDS, BLOCKS = 0.004, 0.02, 3
# About what all of it takes.
EXPECTED_SECONDS = 0.5

Repeat = Callable[[int], Any]


def run(spec: RunSpec, adapter: Adapter, log: EventWriter, run_seconds: float) -> None:
    """One event. Left out, and said so, where it might take more than measure.probe_limit of the run so far, and where
    the framework offers no product; what goes wrong in it, such as memory that is full, fails no run that is done."""
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
            rate, side = _best(adapter.product, SIDES, lambda n: 2.0 * n**3)
            found.update(flops_per_second=rate, side=side)
            rate, nbytes = _best(adapter.copy, MESSAGES, lambda n: 2.0 * n)
            found.update(bytes_per_second=rate, bytes=nbytes)
        except Exception as error:  # each framework has its own for memory that is full
            reason = f"{type(error).__name__}: {str(error)[:200]}"
    log.write("ceiling", precision=spec.precision, **found, seconds=time.perf_counter() - begun, reason=reason)


def _best(
    make: Callable[[int], Optional[Repeat]], sizes: Tuple[int, int], work: Callable[[int], float]
) -> Tuple[float, int]:
    """(the highest rate of a few blocks, in work per second; the size that it was taken with)."""
    size, largest = sizes
    while True:
        repeat = make(size)
        assert repeat is not None
        repeat(1)  # what compiles or allocates at its first call
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
