"""The results in sentences, the same in terminal and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.constants import IMPORTED, PLAIN
from analysis.base.text import DASH, gpus_text, listed, number, percent, span, times, unit
from analysis.measures.breakdown import WAITING_NOTE
from analysis.read.columns.workload import METHODS
from analysis.read.log.values import PATTERN
from analysis.stats.intervals import Interval
from analysis.stats.stability import DRIFT_ALPHA, DRIFT_FRACTION, FEWEST_VALUES
from analysis.tables.columns import POINT
from analysis.tables.names import training_name
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from analysis.tables.series import series_of
from analysis.tables.warnings import BASELINE_OVERSUBSCRIBED, OVERSUBSCRIBED
from harness.core.spec import DALI, EMULATED

if TYPE_CHECKING:
    from analysis.read.study import Study

INTERVAL_NOTE = (
    "95 %: Student's t interval of the mean seconds per sample over the runs of a point, on the scale of logarithms; "
    "of speedup and efficiency, that of a ratio of two means. From the blocks of one run, allowing for their "
    "autocorrelation, where a point has a single run: how steady it was, not what another run would give."
)

GOODPUT_NOTE = (
    "Goodput: seconds of the steps that count by the seconds from begin to end of every attempt, start-up, evaluation, "
    "probes, checkpoints and lost steps included; not the time in the queue."
)


WORK_NOTE = (
    "Equal work: the parameters; the first synchronised gradient, its sum and its sum of magnitudes, as differences by "
    "the latter; and with verify=true, from one rank in fp32, the largest difference of the logits, the norm of the "
    "gradients' difference by their norm, and the largest relative difference of the first losses. Each with its bound."
)


DALI_NOTE = (
    "Decoded by DALI: samples, their order, crops and flips are those of the other input pipelines, whose batches are "
    "the same byte for byte; pixel values differ slightly, as NVIDIA DALI decodes and resizes the images itself."
)


# The range over fewer seeds says little about the next one.
ENOUGH_SEEDS = 3

LEARNING_NOTE = (
    "Accuracy of the test samples at each run's last evaluation: mean and range of the seeds. Seconds, epochs and "
    "GPU-hours are those of training, warm-up included, evaluations not."
)

STEADINESS_NOTE = (
    "All measured blocks count in every figure. Outside the fences: blocks farther than 1.5 interquartile ranges from "
    "the quartiles of their run (Tukey). Drift: a trend of the step time over the blocks of a run, or over "
    f"{FEWEST_VALUES} runs or more in the order of their starts, that the Mann-Kendall test sees (p < {DRIFT_ALPHA:g}) "
    f"and that moved it by more than {percent(DRIFT_FRACTION)} (Theil-Sen). Intervals, tests, and how the twelve rules "
    "of Hoefler and Belli (SC'15) are kept: docs/method.md."
)

RESOURCES_NOTE = (
    "Of the timed steps. Energy is measured where a counter of the device holds it, estimated where the figure may "
    "hold others' energy or is added up from samples of power, absent where nothing tells: never 0. Memory: the most "
    "that any rank held. Sent: by all machines, as their network interfaces count, whoever sent; on one node through "
    "its loopback interface; what goes over NVLink or shared memory is in no such counter. Read: by all ranks, the "
    "page cache included. resources.csv has every figure."
)


def interval_note(points: Iterable[Point]) -> str:
    """INTERVAL_NOTE, with what all throughputs count."""
    units = {point.unit for point in points}
    return (
        INTERVAL_NOTE.replace("per sample", f"per {units.pop().removesuffix('s')}")
        if len(units) == 1
        else INTERVAL_NOTE
    )


def sample_notes(points: Sequence[Point]) -> list[str]:
    """Return notes on what a sample is (stand-ins, data sets other than images), and on pixels changed by DALI."""
    # The key of a series is the JSON of its spec.
    specs = [spec_of(point.series) for point in points]
    datasets = [spec["dataset"] for spec in specs if "dataset" in spec]
    notes = [
        f"A sample of {data['name']} is one sequence of {data['context']} tokens; the accuracy is that of tokens."
        for data in datasets
        if data["context"]
    ]
    notes += [
        f"{data['name']} is made from the seed, in the shape of {data['stands_for']}: its accuracy says nothing of "
        f"{data['stands_for']}."
        for data in datasets
        if data.get("stands_for")
    ]
    if any(spec.get("data", {}).get("pipeline") == DALI for spec in specs):
        notes.append(DALI_NOTE)
    notes += [note for point in points if (note := own_note(point))]
    return list(dict.fromkeys(notes))


def own_words(point: Point) -> str | None:
    """Return 'your own training', or 'imported'; None for a network of the catalogue."""
    if not point.is_own:
        return None
    return IMPORTED if point.framework == IMPORTED else "your own training"


def own_note(point: Point) -> str | None:
    """Return how a training of the user's own was measured, and what its throughput counts."""
    counted_unit = [f"its throughput counts {point.unit}"] if point.unit != "samples" else []
    if point.framework == IMPORTED:
        seen = any(run.method for run in point.members)
        how = (
            f"steps read by {METHODS[PATTERN]}, world size not verified"
            if seen
            else "how it was measured is not known here"
        )
        return "; ".join([f"{point.model}: imported", how, *counted_unit]) + "."
    methods = sorted({METHODS[run.method] for run in point.completed if run.method in METHODS})
    if not methods:
        return None
    remarks = list(counted_unit)
    if any(run.data_waits_json for run in point.completed):
        remarks.append(WAITING_NOTE)
    return "; ".join([f"{point.model}: your own training, measured by {listed(methods, 'and')}", *remarks]) + "."


def accuracy_notes(points: Sequence[Point]) -> list[str]:
    """Return why accuracies are not comparable: different numbers of steps, or several views of each test image."""
    measures = [spec_of(point.series).get("measure", {}) for point in points if point.test_accuracy is not None]
    notes = []
    # May be of any type, since it comes from a file.
    if any(measure.get("evaluate_views", 1) != 1 for measure in measures):
        notes.append(
            "Where measure.evaluate_views is above 1, accuracy and loss are of the mean logits of several views of a "
            "test image, mirrored or moved: not to be set beside those of the images as they are."
        )
    if all(measure.get("precision") is None and measure.get("warmup_limit_steps") is None for measure in measures):
        return notes
    return [
        *notes,
        "Runs with measure.precision or measure.warmup_limit_steps train until their step time is known, each for "
        "another number of steps: their accuracies are not to be compared; for that take measure=learning.",
    ]


def headlines(points: Sequence[Point]) -> list[str]:
    """One sentence per series, on its largest measured point. points: ordered by series, then by GPUs."""
    return [
        sentence(series.measured[-1]) + (f" No figure for {series.gaps}." if series.gaps else "")
        for series in series_of(points)
        if series.measured
    ]


def sentence(point: Point) -> str:
    """Return the result of a point with its warnings; for an oversubscribed point, why it is no scaling result."""
    marks = point.marks
    if is_own_baseline(point):
        rate = f"{number(point.samples_per_second)} {point.rate_unit} on {point.size}"
        one = f"one number of {unit(point.device)} was measured"
        text = f"{point.name}: {rate}; no speedup to state, {'the framework alone' if point.strategy == PLAIN else one}"
        remarks = [interval_text(point, "samples_per_second"), *marks]
    else:
        text = f"{point.name}: {times(point.speedup)} on {point.size} relative to {baseline(point)}"
        text += f", {percent(point.efficiency)} efficiency"
        remarks = [interval_text(point, "efficiency"), *marks]
    if remarks:
        text += f" ({'; '.join(remarks)})"
    if EMULATED in marks:
        text += ". Emulated: its costs were set, and nothing was computed"
    if OVERSUBSCRIBED in marks:
        return f"{text}. This is not a scaling result: {point.oversubscribed}."
    if BASELINE_OVERSUBSCRIBED in marks:
        return f"{text}. This is not a scaling result: the point that it is relative to was oversubscribed."
    return f"{text}."


def ranged(found: Interval | None, show: Callable[[float | None], str] = number) -> str:
    """'3.80 (3.71–3.89)', or without an interval '3.80'."""
    if found is None:
        return DASH
    return show(found.estimate) + ("" if found.low is None else f" ({span(*found.ends, show)})")


def interval_text(point: Point, name: str) -> str:
    """'95 % interval 51–64 %, from 3 runs each', or why there is none."""
    column = POINT[name]
    basis: str = column.value(point, "basis")
    return basis if column.value(point, "low") is None else f"95 % interval {column.interval(point)}, from {basis}"


def baseline(point: Point) -> str:
    """The baseline of a measured point: '1 GPU', or '1 GPU, plain'."""
    plain = f", {PLAIN}" if point.relative_to_strategy == PLAIN else ""
    return gpus_text(point.base_gpus, point.device) + plain


def is_own_baseline(point: Point) -> bool:
    """Return whether the point is the baseline of its series."""
    own = (point.gpus, point.strategy)
    return own == (point.relative_to_gpus, point.relative_to_strategy)


def compared_with(row: Mapping[str, Any], separator: str = " ") -> str:
    """Return the reference of an equal-work row: framework, strategy, and GPUs if their number differs."""
    if row.get("reference_framework") is None:
        return DASH
    gpus = row["reference_gpus"]
    at = "" if gpus == row["gpus"] else f" on {gpus_text(gpus, row['device'])}"
    return training_name(row["reference_framework"], row["reference_strategy"], separator) + at


def unit_of(points: Iterable[Point]) -> str:
    """Return the unit of these points: GPUs, or ranks on CPUs."""
    devices = {point.device for point in points}
    return unit(devices.pop()) if len(devices) == 1 else "GPUs or CPU ranks"


def left_out(study: Study) -> list[str]:
    """Return sentences on unsupported combinations that the sweeps left out."""
    return [f"left out, because it does not exist: {sentence}" for sentence in study.skipped]


def seeds_text(row: Mapping[str, Any]) -> str:
    """Return the number of seeds, and whether it is too small for a spread."""
    n = row["seeds"]
    if n == 1:
        return "1 seed: no spread"
    return f"spread over {n} seeds" + (f": fewer than {ENOUGH_SEEDS}" if n < ENOUGH_SEEDS else "")


def target_text(row: Mapping[str, Any]) -> str:
    """Return how many runs of a point reached the target."""
    if not row["reached"]:
        return "not reached"
    return "reached" if row["reached"] == row["runs"] else f"{row['reached']} of {row['runs']} runs"


def steadiness_lines(points: Sequence[Point]) -> list[str]:
    """Notes of the points for the terminal."""
    return [f"{point.name}, {point.size}: {point.notes}" for point in points if point.notes]
