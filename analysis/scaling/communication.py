"""Formulas for the cost of communication and waiting per training step, in seconds.

Thakur, Rabenseifner and Gropp 2005 (Optimization of Collective Communication Operations in MPICH, section 4) for ring
and tree; Blom 1958 (Statistical Estimates and Transformed Beta-Variables) for the expected maximum.
"""

from __future__ import annotations

import math


def ring_seconds(n: float, message_bytes: float, bytes_per_second: float, latency_seconds: float = 0.0) -> float:
    """A ring allreduce among n: 2(n-1) steps, each of which sends 1/n of the message."""
    return 2 * (n - 1) * latency_seconds + 2 * (n - 1) / n * message_bytes / bytes_per_second


def tree_seconds(n: float, message_bytes: float, bytes_per_second: float, latency_seconds: float = 0.0) -> float:
    """Reduce-scatter by halving and allgather by doubling (Rabenseifner): the ring's bytes in 2 log2(n) steps."""
    return 2 * math.log2(n) * latency_seconds + 2 * (n - 1) / n * message_bytes / bytes_per_second


def exposed_seconds(
    communication_seconds: float, backward_seconds: float, overlap: float, last_bucket_seconds: float = 0.0
) -> float:
    """Communication that is not hidden behind backward, of which a share `overlap` (0 to 1) can hide it.

    The last bucket's allreduce starts when backward ends, so it is always exposed (Li et al. 2020, PyTorch Distributed,
    VLDB 13(12), section 3.2).
    """
    return max(last_bucket_seconds, communication_seconds - overlap * backward_seconds)


def expected_maximum(n: float) -> float:
    """Expected maximum of n standard normal draws by Blom's approximation (within 0.02 of the exact value); 0 for n
    = 1. A step that waits for the slowest of n ranks takes this many standard deviations longer than the mean rank."""
    from scipy.special import ndtri

    return float(ndtri((n - 0.375) / (n + 0.25)))
