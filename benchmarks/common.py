"""Result type of every benchmark, and its formatting."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.rendezvous import Rendezvous
from harness.core.spec import read_run
from harness.node.command import rank_environment
from harness.worker.record.capture import cpu_model

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One result.

    Attributes:
        ours, peer: samples in `unit`, measured alternately.
        target: the promised value.
        ratio: the quantity the target refers to, computed from both.
        interval: confidence interval of the ratio, if it is a median over pairs.
    """

    what: str
    unit: str
    ours: Sequence[float]
    peer_name: str = ""
    peer: Sequence[float] = ()
    ratio: float | None = None
    target: str = ""
    interval: tuple[float, float] | None = None

    def cells(self) -> list[str]:
        return [
            self.what,
            f"{spread(self.ours)} {self.unit}",
            f"{spread(self.peer)} {self.unit} ({self.peer_name})" if self.peer else "–",
            f"{self.ratio:.4g}" if self.ratio is not None else "–",
            f"{self.interval[0]:.4g} to {self.interval[1]:.4g}" if self.interval is not None else "–",
            self.target or "–",
            str(len(self.ours)),
        ]


def spread(samples: Sequence[float]) -> str:
    """Format as median (smallest to largest)."""
    return f"{statistics.median(samples):.3g} ({min(samples):.3g} to {max(samples):.3g})"


def median_of_ratios(above: Sequence[float], below: Sequence[float]) -> float:
    """Median ratio of paired runs, which cancels the machine's drift."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def paired(what: str, unit: str, ours: Sequence[float], peer_name: str, peer: Sequence[float], target: str = "") -> Row:
    """A row for paired runs, with the median of their ratios and its interval."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return Row(what, unit, ours, peer_name, peer, statistics.median(ratios), target, interval_of_median(ratios))


def interval_of_median(samples: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Distribution-free confidence interval of the median from order statistics.

    Inverts the sign test (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2). None for fewer than six
    samples, whose full range has less than 95 % coverage.
    """
    n, ordered = len(samples), sorted(samples)
    tail, left_out = 0.0, 0  # the probability that the median lies beyond one end's next sample; samples of either end
    while 1 - 2 * (tail + math.comb(n, left_out) / 2**n) >= level:
        tail += math.comb(n, left_out) / 2**n
        left_out += 1
    return (ordered[left_out - 1], ordered[n - left_out]) if left_out else None


def seconds_of(command: Sequence[str], **keywords: object) -> float:
    """Wall time of a command from start to exit. Raises CalledProcessError if it fails."""
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, **keywords)  # type: ignore[call-overload]
    return time.perf_counter() - begin


def harness(folder: Path, study: str, *overrides: str) -> list[Path]:
    """Run a study of `python -m harness` in a folder; returns its run directories in order."""
    seconds_of(python("-m", "harness", *overrides, f"study={study}"), cwd=folder)
    return sorted((folder / "results" / study / "runs").iterdir())


def measured_as_rank(module: str, run_dir: Path, *arguments: int) -> Any:
    """Run a module of benchmarks like a single rank of the run; returns the JSON of its last line."""
    spec, site = read_run(run_dir)
    environment = rank_environment(spec, site, Rendezvous(0, 1, 0, 1, "127.0.0.1", 0), os.environ)
    command = [site.python, "-m", f"benchmarks.sides.{module}", str(run_dir), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> str:
    return (
        f"{os.cpu_count()} cores of {cpu_model()}, {platform.system()}, Python {platform.python_version()}, no GPU used"
    )


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
