"""Result type of every benchmark, and its formatting."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from analysis.stats.estimates import CONFIDENCE, t_critical
from analysis.stats.proportions import wilson
from analysis.stats.rounds import of_runs
from harness.core.rendezvous import Rendezvous
from harness.core.spec import read_run
from harness.node.command import rank_environment
from harness.worker.record.capture import cpu_model

ROOT = Path(__file__).resolve().parents[1]


Limits = tuple[float, float] | None

# A part of a target: `≤ 0.35 s`, `≥ 0.99 of the peer`, `mean ≤ 8 %`, `85 to 95 %`, `less than the peer`. Without a unit
# or with "of the peer" it is about the ratio, else about our figure: its median unless it says otherwise.
PART = re.compile(
    r"(?:(?P<of>mean|median|largest) )?(?:(?P<sign>[≤≥<>]) (?P<limit>[\d.]+)|(?P<low>[\d.]+) to (?P<high>[\d.]+))"
    r"(?: (?P<unit>.+))?"
)
LESS = {"less than the peer": ("ratio", 1.0), "the largest less than the peer's": ("excess", 0.0)}
MET, MISSED, UNDECIDED = "met", "missed", "undecided"
FEWEST = 6  # samples for an interval of their median
# Units of what is counted or a file's size: one sample says all.
EXACT = ("MB", "runs", "reports")


@dataclass(frozen=True)
class Row:
    """One result.

    Attributes:
        ours, peer: samples in `unit`, measured alternately.
        target: the promised value, of which `PART` says what can be said; several parts are joined by ", and ".
        ratio: the quantity that targets without a unit refer to, computed from both: the median over the pairs, unless
            the module's RATIO says otherwise.
        interval: 95 % confidence interval of the ratio.
        counted: (count, total) of a share, instead of samples.
    """

    what: str
    unit: str
    ours: Sequence[float]
    peer_name: str = ""
    peer: Sequence[float] = ()
    ratio: float | None = None
    target: str = ""
    interval: Limits = None
    counted: tuple[int, int] | None = None

    def cells(self) -> list[str]:
        ours = f"{spread(self.ours)} {self.unit}"
        shown = self.interval if self.ratio is not None else self.limits()["median"]
        if self.counted is not None:
            ours = f"{self.counted[0]} of {self.counted[1]} ({self.ours[0]:.3g} %)"
        return [
            self.what,
            ours,
            f"{spread(self.peer)} {self.unit} ({self.peer_name})" if self.peer else "–",
            f"{self.ratio:.4g}" if self.ratio is not None else "–",
            f"{shown[0]:.4g} to {shown[1]:.4g}" if shown is not None else "–",
            self.target or "–",
            verdict(self.target, self.limits()),
            str(self.counted[1] if self.counted else len(self.ours)),
        ]

    def limits(self) -> dict[str, Limits]:
        """95 % confidence intervals by what a target may be about."""
        excess = max(self.ours) - max(self.peer) if self.peer else math.inf
        found: dict[str, Limits] = {
            "ratio": self.interval,
            "median": interval_of_median(self.ours),
            "mean": None,
        }
        if len(self.ours) > 1:
            found |= {"largest": (max(self.ours), max(self.ours)), "excess": (excess, excess)}
        if self.counted is not None:
            low, high = wilson(*self.counted).times(100).ends
            found["median"] = (low or 0.0, high or 0.0)
        elif len(self.ours) >= FEWEST:
            low, high = of_runs(self.ours).ends
            found["mean"] = (low or 0.0, high or 0.0)
        elif self.unit in EXACT:
            found["median"] = (min(self.ours), max(self.ours))
        return found


def verdict(target: str, limits: Mapping[str, Limits]) -> str:
    """`met` if the whole interval is within the target, `missed` if none of it is, else `undecided`.

    A target of several parts is met with all and missed with one. limits: by what a part may be about, None with too
    few samples.
    """
    if not target or target == "–":
        return "–"
    parts = [_part(part, limits) for part in target.split(", and ")]
    return MISSED if MISSED in parts else UNDECIDED if UNDECIDED in parts else MET


def _part(part: str, limits: Mapping[str, Limits]) -> str:
    found = PART.fullmatch(part)
    if part in LESS:
        about, high, low, strict = *LESS[part], -math.inf, True
    elif found is None:
        raise ValueError(f"target {part!r}: give one like '≤ 2 s', 'mean ≤ 8 %', '85 to 95 %' or '≥ 0.99 of the peer'")
    else:
        of_ratio = found["unit"] in (None, "of the peer")
        about, sign = "ratio" if of_ratio else found["of"] or "median", found["sign"]
        low = float(found["low"] or (found["limit"] if sign in ("≥", ">") else -math.inf))
        high = float(found["high"] or (found["limit"] if sign in ("≤", "<") else math.inf))
        strict = sign in ("<", ">")
    ends = limits.get(about)
    if ends is None:
        return UNDECIDED
    if ends[1] < low or ends[0] > high or (strict and ends[0] == ends[1] in (low, high)):
        return MISSED
    return MET if low <= ends[0] and ends[1] <= high and not (strict and {low, high} & {*ends}) else UNDECIDED


def spread(samples: Sequence[float]) -> str:
    """Format as median (smallest to largest)."""
    if len(samples) == 1:
        return f"{samples[0]:.3g}"
    return f"{statistics.median(samples):.3g} ({min(samples):.3g} to {max(samples):.3g})"


def paired(what: str, unit: str, ours: Sequence[float], peer_name: str, peer: Sequence[float], target: str = "") -> Row:
    """A row for paired runs, with the median of their ratios, which cancels the machine's drift, and its interval."""
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return Row(what, unit, ours, peer_name, peer, statistics.median(ratios), target, interval_of_median(ratios))


def share(what: str, held: Sequence[bool], target: str = "") -> Row:
    """A row for a share in percent, with its Wilson score interval."""
    return counted_share(what, sum(held), len(held), target)


def counted_share(what: str, count: int, total: int, target: str = "") -> Row:
    """As `share`, of counts."""
    return Row(what, "%", [100 * count / total], target=target, counted=(count, total))


def ratio_of_means(ours: Sequence[float], peer: Sequence[float]) -> tuple[float, Limits]:
    """The ratio of the means of paired samples with its log-scale t interval (delta method; Cochran, Sampling
    Techniques, 3rd ed., section 6.4); no interval for fewer than six pairs."""
    n, ratio = len(ours), sum(ours) / sum(peer)
    if n < FEWEST or not ratio:
        return ratio, None
    squares = sum((a - ratio * b) ** 2 for a, b in zip(ours, peer, strict=True))
    factor = math.exp(t_critical(n - 1, CONFIDENCE) * math.sqrt(squares * n / (n - 1)) / sum(ours))
    return ratio, (ratio / factor, ratio * factor)


def interval_of_median(samples: Sequence[float], level: float = CONFIDENCE) -> Limits:
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
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_environment(), **keywords)  # type: ignore[call-overload]
    return time.perf_counter() - begin


def _environment() -> dict[str, str]:
    """Variables of a measured command, which compiles the project's modules once, as it does for a user."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": str(ROOT)}


class Cost(NamedTuple):
    """seconds: wall time. cpu_seconds, peak_gb: of the process and its children."""

    seconds: float
    cpu_seconds: float
    peak_gb: float


def cost_of(command: Sequence[str], cwd: str | None = None) -> Cost:
    """Measure a command. Raises RuntimeError if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL, cwd=cwd)
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - begin
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise RuntimeError(f"exit code {code}: {command}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu, peak[0] / 1e9)


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], _resident(process.pid))
        time.sleep(0.05)


def _resident(pid: int) -> int:
    """Resident bytes of a process and its descendants."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):  # it has ended
        return 0
    return own + sum(_resident(int(child)) for child in children)


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
