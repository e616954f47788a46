"""Set up simulations from a study's measurements, and state the results in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.base.text import gpus_text, number, percent
from analysis.measures.bandwidth import bus_bandwidth
from analysis.measures.breakdown import COMPUTE, DATA, Parts, parts_of_runs
from analysis.read.attempts import read_attempts
from analysis.read.row import Run
from analysis.simulation.failures import Reliability, daly, expected_seconds, simulated_seconds, young
from analysis.simulation.network import Network
from analysis.simulation.noise import Noise, noise_of
from analysis.simulation.steps import Compute, Steps, closed_form, simulate_steps
from analysis.stats.rounds import FEWEST_ROUNDS
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from analysis.tables.points import step_seconds_of
from analysis.tables.series import series_of
from harness.core.run_files import RUNS as RUN_FOLDERS
from harness.core.spec import WEAK
from harness.core.strategies import info

MB = 1e6
DEFAULT_BUCKET_MB = 25.0  # PyTorch's default; those of other frameworks are similar
# Relative difference above which the closed form is reported as invalid.
AGREES = 0.02
# Relative difference from the measured step above which nothing is simulated.
CHECK = 0.1
# Simulated checkpoint intervals, relative to Daly's.
INTERVALS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
RUNS = 100


@dataclass(frozen=True)
class Options:
    """The user's settings, explained in the command's help."""

    gpus: tuple[int, ...]
    steps: int
    latency_us: float
    bus_gb_per_s: float | None
    bucket_mb: float | None
    late_probability: float
    late_seconds: float
    mtbf_hours: float | None
    checkpoint_seconds: float
    restart_seconds: float
    work_hours: float
    weibull_shape: float
    seed: int


@dataclass(frozen=True)
class Simulated:
    """Simulation of one series.

    Attributes:
        measured: the point that the simulation is based on.
        check: simulation of that same point.
        steps, formula: simulated steps, and seconds per step of the closed form; one per requested number of GPUs.
        stall: measured seconds per step of waiting for data; not included in the other times.
        base_step: seconds per step at the smallest measured point, the baseline of efficiency.
    """

    measured: Point
    check: Steps
    steps: Sequence[Steps]
    formula: Sequence[float]
    stall: float
    base_step: float
    notes: tuple[str, ...]


def simulate(points: Sequence[Point], folder: Path, options: Options) -> tuple[list[Simulated], list[str]]:
    """Simulate every series that allows it; return the results, and why others were left out, once for each reason.

    points: points of the study in this folder, ordered by series, then by GPUs.
    """
    simulated: list[Simulated] = []
    left_out: dict[str, list[str]] = {}
    for series in series_of(point for point in points if point.measured):
        found = _simulated(series.points, folder, options)
        if isinstance(found, str):
            left_out.setdefault(found, []).append(series.points[-1].label)
        else:
            simulated.append(found)
    return simulated, [f"{'; '.join(names)}: not simulated: {reason}" for reason, names in left_out.items()]


def _simulated(series: Sequence[Point], folder: Path, options: Options) -> Simulated | str:
    """Return the simulation of a series, or why there is none."""
    point = series[-1]
    if point.is_own:
        return "what its ranks send to each other is not known of a training of your own"
    if not info(point.strategy).sums_all_gradients:
        return f"only synchronous allreduces are, and not strategy {point.strategy}"
    if point.scaling != WEAK and any(gpus != point.gpus for gpus in options.gpus):
        return "in strong scaling the batch per GPU, and so the compute time, would differ from the measured one"
    completed = point.completed
    parts = parts_of_runs(completed, step_seconds_of(completed))
    if parts is None or COMPUTE not in parts.seconds or parts.seconds[COMPUTE].estimate <= 0:
        return "no probes say how long a GPU computes"
    if point.gpus == 1:
        return "it was measured on one GPU alone, so nothing is known about the network"
    network = _network(point, parts, options)
    if isinstance(network, str):
        return network
    noise = _noise(completed, folder)
    if noise is None:
        return (
            f"its ranks took fewer than {FEWEST_ROUNDS} rounds of steps without synchronisation, which show the noise "
            "of a GPU: raise measure.probe_limit or measure.probe_rounds"
        )
    if max(options.gpus) > noise.observed:
        return (
            f"{noise.observed:,} steps of a GPU were measured without synchronisation, which says nothing about the "
            f"slowest of {max(options.gpus):,}: give gpus up to {noise.observed:,}, or measure more"
        )
    seconds = parts.seconds[COMPUTE].estimate
    compute = Compute(seconds, noise, options.late_probability, options.late_seconds)
    settings = spec_of(point.series)["strategy_options"]
    bucket = (options.bucket_mb or settings.get("bucket_mb") or DEFAULT_BUCKET_MB) * MB
    overlap = bool(settings.get("overlap", True))

    def steps_of(gpus: int, compute: Compute = compute) -> Steps:
        costs = network.buckets(parts.allreduce_bytes or 0, bucket, gpus)
        return simulate_steps(compute, costs, gpus, options.steps, overlap, np.random.default_rng([options.seed, gpus]))

    stall, measured = max(0.0, parts.seconds[DATA].estimate), step_seconds_of(completed)
    check = steps_of(point.gpus, Compute(seconds, noise))
    if abs((check.mean + stall) / measured - 1) > CHECK:
        return (
            f"its check failed: on {gpus_text(point.gpus, point.device)} simulated {_ms(check.mean + stall)}, measured "
            f"{_ms(measured)}, which is more than {percent(CHECK)} off; the breakdown shows what the probes leave "
            "unexplained"
        )

    formula = [
        closed_form(compute, network.buckets(parts.allreduce_bytes or 0, bucket, gpus), gpus, overlap)
        for gpus in options.gpus
    ]
    notes = (
        f"compute {_ms(seconds)}, of a GPU varying by {percent(noise.step, 1)} from step to step, by "
        f"{percent(noise.speed, 1)} between GPUs, and by {percent(float(np.std(noise.common)), 1)} on all alike",
        f"data stall {_ms(stall)}",
        f"bus bandwidth {number(network.bus_gb_per_s)} GB/s, latency {number(options.latency_us)} us",
        f"gradients of {number((parts.allreduce_bytes or 0) / MB)} MB in buckets of {number(bucket / MB)} MB"
        + ("" if overlap else ", none sent before the last gradient is there"),
        *point.marks,
    )
    simulated, base_step = [steps_of(n) for n in options.gpus], step_seconds_of(series[0].completed)
    return Simulated(point, check, simulated, formula, stall, base_step, notes)


def _network(point: Point, parts: Parts, options: Options) -> Network | str:
    if not parts.allreduce_bytes or parts.allreduce is None or parts.allreduce.estimate <= 0:
        return "the allreduce alone was not measured"
    latency = options.latency_us / 1e6
    if options.bus_gb_per_s is not None:
        return Network(options.bus_gb_per_s, latency)
    if point.nodes == 1 and max(options.gpus) > point.gpus:
        return "it was measured on one node alone: give the bandwidth between nodes, bus_gb_per_s=..."
    return Network(bus_bandwidth(parts.allreduce_bytes, parts.allreduce.estimate, point.gpus), latency)


def _noise(completed: Sequence[Run], folder: Path) -> Noise | None:
    """Return the noise that the probes without synchronisation show; None with fewer than FEWEST_ROUNDS of them."""
    found: list[list[list[float]]] = []
    steps = 1
    for run in completed:
        attempts = read_attempts(folder / RUN_FOLDERS / run.run_id)
        ranks = next((attempt.ranks for attempt in reversed(attempts) if attempt.ranks), {})
        logged = [rank.probes.get(("no_sync", None), {}) for rank in ranks.values()]
        rounds = sorted(set.intersection(*map(set, logged))) if logged else []
        if len(rounds) >= FEWEST_ROUNDS:
            steps = logged[0][rounds[0]][0]
            found.append([[own[number][1] / own[number][0] for own in logged] for number in rounds])
    count = min(map(len, found), default=0)
    return noise_of([np.array(seconds[:count]) for seconds in found], steps) if found else None


def sentences(simulated: Simulated) -> list[str]:
    """Describe the result, one sentence for each number of GPUs."""
    point, check, stall = simulated.measured, simulated.check, simulated.stall
    said = [
        f"{point.label}: simulated from {point.size} ({'; '.join(simulated.notes)})",
        f"  check: on {gpus_text(check.gpus, point.device)} simulated {_ms(check.mean + stall)}, measured "
        f"{_ms(step_seconds_of(point.completed))}",
    ]
    for steps, formula in zip(simulated.steps, simulated.formula, strict=True):
        low, high = np.percentile(steps.seconds, [5, 95])
        ends = abs(formula / steps.mean - 1) > AGREES
        said.append(
            f"  {gpus_text(steps.gpus, point.device)}: {_ms(steps.mean + stall)} per step "
            f"(5 to 95 % of the steps: {_ms(low + stall)} to {_ms(high + stall)}), "
            f"{percent(simulated.base_step / (steps.mean + stall))} efficiency; imbalance {_ms(steps.imbalance)}, "
            f"exposed communication {_ms(steps.exposed)}; closed form {_ms(formula + stall)}"
            + (": it does not hold here" if ends else "")
        )
    return said


def failure_sentences(options: Options, nodes_of: Mapping[int, int], device: str | None) -> list[str]:
    """State how often to save, for each number of GPUs.

    Args:
        options: the user's settings.
        nodes_of: nodes by number of GPUs.
        device: what the ranks ran on.
    """
    assert options.mtbf_hours is not None
    said = []
    for gpus, nodes in nodes_of.items():
        mtbf = options.mtbf_hours * 3600 / nodes
        machine = Reliability(mtbf, options.checkpoint_seconds, options.restart_seconds, options.weibull_shape)
        ranks = gpus_text(gpus, device)
        said.append(f"  {ranks} on {nodes} nodes, a failure every {_time(mtbf)}: {_saved(machine, options)}")
    return said


def _saved(machine: Reliability, options: Options) -> str:
    work, best = options.work_hours * 3600, daly(machine)
    intervals = [min(factor * best, work) for factor in INTERVALS]
    means = [float(runs.mean()) for runs in simulated_seconds(work, intervals, machine, RUNS, options.seed)]
    mean, interval = min(zip(means, intervals, strict=True))
    if math.isinf(mean):
        return f"a run of {number(options.work_hours)} h never finishes"
    return (
        f"save every {_time(young(machine))} (Young), {_time(best)} (Daly), {_time(interval)} (the best of "
        f"{len(INTERVALS)} simulated); {number(options.work_hours)} h of work then take {number(mean / 3600)} h, "
        f"{percent(work / mean)} goodput (Daly's formula: {number(expected_seconds(work, best, machine) / 3600)} h)"
    )


def _ms(seconds: float) -> str:
    return f"{number(1e3 * seconds)} ms"


def _time(seconds: float) -> str:
    return f"{number(seconds / 3600)} h" if seconds >= 3600 else f"{number(seconds / 60)} min"
