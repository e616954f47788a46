"""Scaling section of a computing-time proposal, for one series of a study. Information only the user has is a gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.constants import IMPORTED
from analysis.base.text import (
    DASH,
    count,
    duration,
    gpus_text,
    hours_unit,
    listed,
    number,
    percent,
    shortened,
    span,
    times,
    unit,
)
from analysis.measures.losses import Losses
from analysis.read.log.values import PATTERN
from analysis.report.answers import answers_of
from analysis.report.losses import loss_sentences
from analysis.report.print.document import (
    Block,
    Bullets,
    Footnotes,
    Gap,
    Group,
    Header,
    Heading,
    Line,
    Paragraph,
    Picture,
    Table,
)
from analysis.report.print.request import Request, Size
from analysis.report.print.tables import mark_words, measured_on
from analysis.report.sentences import baseline, ranged, sample_notes
from analysis.scaling.prediction import FAR, SeriesPrediction
from analysis.stats.intervals import Interval
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from analysis.tables.warnings import OVERSUBSCRIBED, SINGLE_RUN
from harness.core.spec import EMULATED, WEAK

if TYPE_CHECKING:
    from analysis.report.findings import Findings

PICTURE = "proposal"
MOST_REASON = 300  # length limit of reasons for missing results
PREDICTED = "predicted, not measured: the median and the 90 % interval of one measurement there"


def proposal_of(findings: Findings, request: Request) -> list[Block]:
    """Return the section. It refers to its figure as PICTURE."""
    return [
        Heading("Scaling and requested resources"),
        *_warnings(request),
        Heading("Test case and machine", 2),
        Paragraph(_test_case(findings, request)),
        Paragraph(_machine(request)),
        Heading("Scaling behaviour", 2),
        Paragraph(_scaling(findings, request)),
        proposal_table(request),
        Picture(PICTURE, _picture_caption(request), wide=True),
        Heading("Justification of the requested size", 2),
        Bullets(_justification(findings, request)),
        Heading("Requested resources", 2),
        Paragraph(_resources(request)),
        Heading("Method", 2),
        Paragraph((_method(request),)),
    ]


def proposal_table(request: Request) -> Table:
    """Return a table with a row for each size; the requested one is bold."""
    footnotes = Footnotes()
    hours = hours_unit(request.source.device)
    headings = [
        *(unit(request.source.device), "Time per step", "Speedup", "95 %", "Efficiency", "95 %"),
        *(f"{hours[:1].upper()}{hours[1:]} per run", "Runs", "Total"),
    ]
    rows = [_cells(request, size, footnotes) for size in request.sizes]
    strong = frozenset(i for i, size in enumerate(request.sizes) if size is request.asked)
    point = request.points[-1]
    caption = (
        f"{point.series_name}: time per step, speedup and efficiency relative to {baseline(point)}, "
        f"and what {_runs_text(request)} cost; the requested size is in bold. {measured_on(request.points)}"
    )
    columns = [Header(heading, right=number > 0) for number, heading in enumerate(headings)]
    return Table("proposal", caption, columns, [Group("", rows, strong)], footnotes.notes)


def _cells(request: Request, size: Size, footnotes: Footnotes) -> list[Line]:
    point = size.point
    if point is None:
        said, interval = footnotes.raised(PREDICTED, *_caveats(request)), footnotes.raised(None)
    else:
        alone = "the framework alone" if point.series != request.points[-1].series else None
        said, interval = footnotes.raised(alone, *mark_words(point)), footnotes.raised(_basis(point))
    cost = request.gpu_hours(size)
    runs = request.ask.runs
    costs: list[Line] = [(number(cost),), (count(runs),), (DASH if cost is None else number(cost * runs),)]
    if cost is None and size is request.asked:
        costs = [(Gap("hours"),), (count(runs),), (Gap("total"),)]
    return [
        (count(size.gpus), *said),
        (DASH if size.seconds is None else duration(size.seconds.estimate),),
        (times(size.speedup.estimate),),
        (span(size.speedup.low, size.speedup.high, times), *interval),
        (percent(size.efficiency.estimate),),
        (span(size.efficiency.low, size.efficiency.high, percent), *interval),
        *costs,
    ]


def _basis(point: Point) -> str:
    return f"{'' if point.efficiency_low is None else 'interval from '}{point.efficiency_basis}"


def _warnings(request: Request) -> list[Block]:
    """Return warnings that a reader of the table must see."""
    points = request.points
    said = []
    shared = sorted(
        {point.oversubscribed for point in points if OVERSUBSCRIBED in point.marks and point.oversubscribed}
    )
    if shared:
        at = listed([count(point.gpus) for point in points if OVERSUBSCRIBED in point.marks], "and")
        said.append(
            f"This is not a scaling result at {at}: oversubscribed, {shortened('; '.join(shared), MOST_REASON)}."
        )
    if any(EMULATED in point.marks for point in points):
        said.append("These figures are emulated: their costs were set, and nothing was computed.")
    if request.source.device == "cpu":
        said.append("Measured with CPU ranks, not with GPUs: this says nothing about how GPUs scale.")
    single = [count(point.gpus) for point in points if SINGLE_RUN in point.marks]
    if single:
        said.append(
            f"A single run at {listed(single, 'and')}: its interval says how steady it was, not what another run would "
            "give."
        )
    if request.asked.point is None:
        said.append(f"{_where(request)} were not measured: their figures are predicted.")
    return [Paragraph((sentence,), warning=True) for sentence in said]


def _where(request: Request) -> str:
    return gpus_text(request.ask.gpus, request.source.device)


def _test_case(findings: Findings, request: Request) -> Line:
    point = request.points[-1]
    spec = {} if point.is_own else spec_of(point.series)
    samples = request.source.train_samples
    parts = (
        [point.model]
        if point.is_own
        else [
            f"{point.model}{_of_parameters(point.members[0].parameters)} on {point.dataset}"
            + (f" ({count(samples)} samples per epoch)" if samples else ""),
            f"in {point.precision}",
            f"trained with {point.how}",
            f"optimiser {spec['optimizer']['name']}"
            if isinstance(spec.get("optimizer"), dict) and "name" in spec["optimizer"]
            else "",
        ]
    )
    device = "rank" if point.device == "cpu" else "GPU"
    size = point.batch_per_gpu if point.scaling == WEAK else point.global_batch
    if size is None:
        batch = "batch not stated"
    elif point.scaling == WEAK:
        batch = f"{count(size)} samples per {device} and step"
    else:
        batch = f"a global batch of {count(size)} samples"
    detail = f" Settings: {point.detail}." if point.detail else ""
    notes = " ".join(sample_notes(request.points))
    text = f"{', '.join(filter(None, parts))}: {point.scaling} scaling, {batch}.{detail}{f' {notes}' if notes else ''} "
    return (text, Gap("why this test case is representative of the production runs"))


def _of_parameters(parameters: Any) -> str:
    return (
        f" ({count(parameters)} parameters)"
        if isinstance(parameters, (int, float)) and parameters == parameters
        else ""
    )


def _machine(request: Request) -> Line:
    measured = [point for point in request.points if point.nodes]
    most = max(measured, key=lambda point: point.gpus)
    sizes = f"{most.size} on {most.nodes} node{'s' * (most.nodes != 1)}"
    text = f"{measured_on(request.points)} The largest measured size is {sizes}, {most.ranks_per_node} per node. "
    return (text, Gap("the machine for which time is requested, and how it differs from the measured one"))


def _scaling(findings: Findings, request: Request) -> Line:
    base = gpus_text(request.base.gpus, request.base.device)
    series = request.points[-1].series
    said = "".join(
        f"{one.headline} " for one in answers_of(findings.points, findings.losses) if one.point.series == series
    )
    text = f"{said}Speedup and efficiency are relative to {baseline(request.points[-1])}, the smallest measured size. "
    named = [f"{point.size} ({_why_none(point)})" for point in request.lacking]
    if named:
        text += f"There is no figure for {listed(named, 'and')}. "
    gap = (Gap(f"why nothing smaller than {base} is feasible, such as memory"),) if request.base.gpus > 1 else ()
    return (text, *gap)


def _why_none(point: Point) -> str:
    return f"{point.status}: {shortened(point.reasons or 'no reason given', MOST_REASON)}"


def _picture_caption(request: Request) -> str:
    text = f"Speedup and efficiency relative to {baseline(request.points[-1])}, with intervals."
    return text + (" Hollow diamond: predicted." if request.asked.point is None else "")


def _justification(findings: Findings, request: Request) -> list[Line]:
    asked = request.asked
    verb, level = ("are predicted to reach", "90 %") if asked.point is None else ("reach", "95 %")
    brackets = "" if asked.speedup.low is None else f"; {level} intervals in parentheses"
    said: list[Line] = [
        (
            f"{_where(request)} {verb} {ranged(asked.speedup, times)} the throughput of "
            f"{baseline(request.points[-1])}, at an efficiency of {ranged(asked.efficiency, percent)}{brackets}.",
        )
    ]
    if (limits := request.ask.limits) is not None:
        least = f" at an efficiency of {percent(limits.efficiency)} or more" if limits.efficiency else ""
        said.append(
            (
                f"Of the sizes up to {FAR} times the largest measured, it is the fastest for which "
                f"{number(limits.gpu_hours)} {hours_unit(request.source.device)} suffice for "
                f"{_runs_text(request)}{least}, at the worse ends of the 90 % intervals.",
            )
        )
    said += [(line,) for line in _marginal(findings, request)]
    if (hours := request.hours(asked)) is not None:
        first = request.hours(request.sizes[0])
        assert first is not None
        said.append(
            (
                f"One run takes {ranged(hours, number)} hours, compared with {number(first.estimate)} on "
                f"{gpus_text(request.sizes[0].gpus, request.source.device)}.",
            )
        )
    said += [(line,) for line in loss_sentences(_losses_of(findings, request))]
    if request.prediction is not None:
        said += [(line,) for line in _prediction(request, request.prediction)]
    said.append((Gap(f"why the time to solution or the memory requires {_where(request)} and not fewer"),))
    return said


def _marginal(findings: Findings, request: Request) -> list[str]:
    """State what the last GPUs added, up to the requested size and, if measured, beyond it."""
    series = request.points[-1].series
    lines = []
    for row in findings.decisions:
        point: Point = row["point"]
        if point.series != series or row["marginal_efficiency"] is None or row["added_to_gpus"] is None:
            continue
        beyond = row["added_to_gpus"] == request.ask.gpus
        if point.gpus == request.ask.gpus or beyond:
            one = "rank" if point.device == "cpu" else "GPU"
            added = Interval(*(row[f"marginal_efficiency{end}"] for end in ("", "_low", "_high")))
            lines.append(
                f"{'Beyond it, from' if beyond else 'From'} {row['added_to_gpus']} to "
                f"{point.size}, each additional {one} contributes "
                f"{ranged(added, percent)} of one {one}'s throughput."
            )
    smaller = [size for size in request.sizes if size.gpus < request.ask.gpus]
    if request.asked.point is None and smaller:
        last = smaller[-1]
        of_one = request.base.rate / request.base.gpus
        share = (request.asked.rate.estimate - last.rate.estimate) / (request.ask.gpus - last.gpus) / of_one
        lines.append(
            f"From {last.gpus} to {_where(request)}, each additional one is predicted to contribute {percent(share)} "
            "of one's throughput."
        )
    return lines


def _losses_of(findings: Findings, request: Request) -> Losses:
    series = request.points[-1].series
    return Losses(tuple(loss for loss in findings.losses.points if loss.point.series == series), {})


def _prediction(request: Request, prediction: SeriesPrediction) -> list[str]:
    """Describe the prediction: how far it extrapolates, on what data, and how well the law fits known sizes."""
    largest = prediction.source.series.largest
    lines = [
        f"The prediction reaches to {request.ask.gpus / largest.gpus:.3g} times the largest measured size, "
        f"{gpus_text(largest.gpus, request.source.device)}. It is made by {prediction.why}.",
        *(f"{caveat}." for caveat in _caveats(request)),
        *(f"{line}." for line in prediction.basis),
    ]
    if prediction.own_test is not None:
        test = prediction.own_test
        lines.append(
            f"From the sizes up to half of it, {gpus_text(test.size.gpus, request.source.device)} would have been "
            f"predicted as {number(test.predicted.median)} {prediction.source.series.counts}/s "
            f"({span(*test.predicted.central90.ends)}); measured: {number(test.measured)}, "
            f"{percent(test.error, 1)} off."
        )
    return [line[:1].upper() + line[1:] for line in lines]


def _caveats(request: Request) -> Sequence[str]:
    if request.prediction is None:
        return ()
    return next(one.caveats for one in request.prediction.predicted if one.size.gpus == request.ask.gpus)


def _resources(request: Request) -> Line:
    unit_of = hours_unit(request.source.device)
    cost = request.gpu_hours(request.asked)
    runs = _runs_text(request)
    why = Gap(f"why {runs} {'is' if request.ask.runs == 1 else 'are'} needed")
    if cost is None:
        return (f"{runs} on {_where(request)} each: ", Gap(f"hours of one run, and {unit_of} in total"), ". ", why)
    hours = request.hours(request.asked)
    assert hours is not None
    length = _length(request)
    high = ""
    if hours.high is not None:
        high = f" (upper end of the interval: {number(hours.high * request.ask.gpus * request.ask.runs)})"
    text = (
        f"{runs} of {length} on {_where(request)} each, at {number(cost)} {unit_of} per run, need "
        f"{number(cost * request.ask.runs)} {unit_of}{high}. This covers training steps only. "
    )
    return (text, Gap("additional time for start-up, evaluation, checkpoints and failed runs"), " ", why)


def _length(request: Request) -> str:
    ask = request.ask
    for value, what in ((ask.epochs, "epoch"), (ask.samples, "sample"), (ask.steps, "step"), (ask.hours, "hour")):
        if value is not None:
            return f"{f'{value:g}' if value < 1e6 else f'{value:,.0f}'} {what}{'s' * (value != 1)}"
    return DASH


def _runs_text(request: Request) -> str:
    return f"{count(request.ask.runs)} run{'s' * (request.ask.runs != 1)}"


def _method(request: Request) -> str:
    """Describe the method in two sentences."""
    counted = request.base.unit.removesuffix("s")
    seen = any(run.method == PATTERN for run in request.base.members)
    how = (
        "read from what it printed, after a warm-up"
        if seen
        else "timed in blocks between synchronisations of the device, after a warm-up, at the pace of the slowest rank"
    )
    first = f"Times are mean seconds per {counted} over the completed runs of a size, whose steps are {how}"
    if request.base.framework == IMPORTED:
        first = "Throughputs are imported; how they were measured is not known here"
    second = (
        "Speedups are ratios of these means, with 95 % Student's t intervals over the runs, or, for a single run, "
        "intervals from its blocks that allow for their autocorrelation"
    )
    if request.asked.point is None:
        second += (
            "; sizes that were not measured are predicted by a scaling law fitted to the others, with 90 % intervals"
        )
    return f"{first}. {second}."
