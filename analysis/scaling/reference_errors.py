"""Levels of knowledge behind a prediction, and the usual error of each.

The errors of the last two are those of `python -m benchmarks prediction`, on series of systems that were left out when
the law's constants were fitted (benchmarks/RESULTS.md); that of the first is from the single-GPU lines of
benchmarks/published/throughput.csv. tests/analysis/scaling/test_estimate.py compares all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.base.text import percent


@dataclass(frozen=True)
class UsualError:
    """|predicted / measured - 1| of the largest size over published series. The worst of them bounds nothing."""

    mean: float
    median: float
    series: int

    def __str__(self) -> str:
        return (
            f"{percent(self.mean, 1)} on average, median {percent(self.median, 1)}, on {self.series} published series"
        )


@dataclass(frozen=True)
class Share:
    """Measured throughput of one GPU as a fraction of the roofline's, over published lines."""

    low: float
    median: float
    high: float
    lines: int
    of_what: str


# The three networks of the catalogue that the table has on GPUs of analysis/measures/devices.json.
ROOFLINE_SHARE = Share(0.503, 0.587, 1.349, 14, "ResNet-50, AlexNet and VGG-16 in fp32 on one V100 or P100")
CALIBRATED_ERROR = UsualError(0.1536, 0.0607, 92)
FITTED_ERROR = UsualError(0.0523, 0.0228, 332)

ROOFLINE = (
    f"roofline, from nominal figures alone: measured throughput of one GPU was {ROOFLINE_SHARE.low:.2f} to "
    f"{ROOFLINE_SHARE.high:.2f} of it, median {ROOFLINE_SHARE.median:.2f} ({ROOFLINE_SHARE.lines} published lines: "
    f"{ROOFLINE_SHARE.of_what}; above 1 because Winograd's convolutions multiply less than is counted)"
)
CALIBRATED = f"calibrated, from one node and a link's bandwidth: usually off by {CALIBRATED_ERROR}"
FITTED = (
    f"fitted to the measured sizes: usually off by {FITTED_ERROR} of GPU systems that were left out, at twice the "
    "largest size or more; what it is elsewhere is not known"
)
