"""Predicts unmeasured sizes of a series, or says why it cannot."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.base.text import percent
from analysis.scaling.backtest import Fold
from analysis.scaling.baselines import flat, linear
from analysis.scaling.bayesian import Posterior, Predictive, posteriors
from analysis.scaling.reference_errors import CALIBRATED, FITTED
from analysis.scaling.series import RateSeries, Size
from analysis.scaling.single_node import OneNode, one_node
from analysis.scaling.study_series import StudySeries
from analysis.scaling.textbook import LAWS, Fit, fit, leave_one_out
from analysis.stats.intervals import Interval

FAR, TOO_FAR = 8, 64  # multiples of the largest measured size: caveat beyond the first, refusal beyond the second


@dataclass(frozen=True)
class Predicted:
    """Prediction for one size; rates in samples per second. rate: None: refused, with reasons in `caveats`. measured:
    None if the size was not measured. linear, flat: trivial predictors. caveats: how far it extrapolates."""

    size: Size
    rate: Predictive | None
    measured: float | None
    linear: float
    flat: float
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class LawFit:
    """A textbook law: its fit to all sizes and its leave-one-out error; None: too few sizes."""

    name: str
    formula: str
    fit: Fit | None
    leave_one_out: float | None


@dataclass(frozen=True)
class SeriesPrediction:
    """predicted: one per requested or measured size, in ascending order. why_not: why nothing could be predicted.
    laws: textbook laws, for comparison with the pooled law that is used; why: why that one.
    own_test: the largest size, predicted from those up to half of it. basis: further assumptions."""

    source: StudySeries
    predicted: tuple[Predicted, ...]
    why_not: str | None
    laws: tuple[LawFit, ...]
    why: str
    own_test: Fold | None
    basis: tuple[str, ...]


def predict_series(
    source: StudySeries, gpus: tuple[int, ...], gpus_per_node: int | None, bytes_per_second: float | None
) -> SeriesPrediction:
    """Predict a series at these numbers of GPUs. gpus_per_node: None: from `node_size`. bytes_per_second: between
    nodes, for a series measured on one node only; None: from the cluster's configuration, if known."""
    series = source.series
    if not series.sizes:
        return SeriesPrediction(source, (), "no completed run: nothing can be concluded", (), "", None, ())
    per_node, basis = node_size(source) if gpus_per_node is None else (gpus_per_node, ())
    from_link, link_basis = calibration(source, bytes_per_second)
    calibrated = None if from_link is None else from_link.posterior
    if len(series.sizes) == 1 and calibrated is None:
        why = f"measured on {series.words(-1)} only: how it scales cannot be concluded; measure a second size"
        return SeriesPrediction(source, (), why, (), "", None, link_basis)
    basis += link_basis
    found, left_out, own_test = _posteriors(series)
    found = calibrated or found
    if calibrated is not None:
        basis += (f"level: {CALIBRATED}",)
    elif len({size.nodes for size in series.sizes}) > 1 or per_node is None:
        basis += (f"level: {FITTED}",)
    else:
        basis += (f"level: inside a node {FITTED}; between nodes from usual losses alone, with no usual error",)
    if found.widening >= 1.05:  # 1.0, in print, is none
        basis += (
            f"the logs of the intervals are widened {found.widening:.1f} times: the largest measured size would not "
            "have been in the law's 90 % interval, before calibration, predicted from those up to half of it",
        )
    measured = dict(zip(series.sizes, series.rates, strict=True))
    asked = {placed(n, per_node) for n in gpus} | set(series.sizes)
    laws = tuple(LawFit(law.name, law.formula, fit(law, series), leave_one_out(law, series)) for law in LAWS)
    return SeriesPrediction(
        source,
        tuple(_predicted(series, found, size, measured.get(size), calibrated is not None) for size in sorted(asked)),
        None,
        laws,
        _why(len(series.sizes), laws, left_out),
        own_test,
        basis,
    )


def efficiency_of(prediction: SeriesPrediction, one: Predicted) -> Interval | None:
    """Return efficiency relative to what was measured at the smallest size, with its 90 % interval; that of a measured
    size as measured."""
    series = prediction.source.series
    ideal = linear(series, one.size)
    if one.measured is not None:
        return Interval(one.measured / ideal)
    return None if one.rate is None else one.rate.central90.mapped(lambda rate: rate / ideal)


def calibration(source: StudySeries, bytes_per_second: float | None) -> tuple[OneNode | None, tuple[str, ...]]:
    """Extend a series on one node by the bandwidth between nodes; None if several nodes were measured, or no bandwidth
    is known. Also return sentences on its basis. bytes_per_second: None: from the cluster's configuration."""
    series = source.series
    basis: tuple[str, ...] = ()
    if any(size.nodes > 1 for size in series.sizes):
        return None, ()
    if bytes_per_second is None:
        bytes_per_second = source.link_bytes_per_second
        basis = ("the link between nodes as cluster.link_gb_per_s says, not measured; bandwidth_gbit=… says otherwise",)
    if bytes_per_second is None:
        return None, ()
    found = one_node(series, bytes_per_second, source.gradient_bytes)
    return found, (*basis, found.why)


def node_size(source: StudySeries) -> tuple[int | None, tuple[str, ...]]:
    """Return GPUs per node, the most measured on one, and a sentence if that is a guess. None for CPU ranks that were
    all on one machine, since they are assumed to stay there."""
    sizes = source.series.sizes
    most = max(round(size.gpus_per_node) for size in sizes)
    if any(size.nodes > 1 for size in sizes):
        return most, ()
    if source.device == "cpu":
        return None, ("all ranks are taken to be on one machine, as they were; gpus_per_node=… says otherwise",)
    return most, (f"nodes are taken to have {most} GPUs, the most that were measured; gpus_per_node=… says otherwise",)


def placed(gpus: int, per_node: int | None) -> Size:
    return Size(gpus, 1 if per_node is None else -(-gpus // per_node))


def usual_sizes(most: int, per_node: int | None) -> list[Size]:
    """Return sizes of up to so many GPUs: 2^i GPUs, and 2^i and 3·2^i full nodes."""
    doubled = [2**i for i in range(most.bit_length())]
    counts = {*doubled, *(of * per_node * n for n in doubled for of in (1, 3) if per_node)}
    sizes = {placed(n, per_node) for n in counts if n <= most}
    return sorted(size for size in sizes if size.gpus % size.nodes == 0)


def _posteriors(series: RateSeries) -> tuple[Posterior, float | None, Fold | None]:
    """Return the posterior of all sizes, the mean leave-one-out error, and the test on the largest size."""
    count = len(series.sizes)
    kept = [[True] * count]
    if count > 1:
        kept += [[j != i for j in range(count)] for i in range(count)]
    half = series.up_to_half()
    if any(half):
        kept.append(half)
    found = posteriors(series, kept)
    error, own_test = None, None
    if count > 1:
        pairs = zip(series.sizes, series.rates, found[1 : 1 + count], strict=True)
        folds = [Fold(size, rate, each.predict(size)) for size, rate, each in pairs]
        error = sum(fold.error for fold in folds) / count
    if any(half):
        own_test = Fold(series.largest, series.rates[-1], found[-1].predict(series.largest))
    return found[0], error, own_test


def _predicted(series: RateSeries, found: Posterior, size: Size, measured: float | None, calibrated: bool) -> Predicted:
    trivial = linear(series, size), flat(series, size)
    ratio = size.gpus / series.largest.gpus
    if ratio > TOO_FAR:
        caveat = f"refused: {ratio:.0f} times the largest measured size, and nothing is said beyond {TOO_FAR} times"
        return Predicted(size, None, None, *trivial, (caveat,))
    if size.gpus % size.nodes:
        caveat = f"refused: {size.gpus} GPUs cannot be placed evenly on {size.nodes} nodes"
        return Predicted(size, None, None, *trivial, (caveat,))
    caveats = []
    if ratio > FAR:
        caveats.append(f"{ratio:.0f} times the largest measured size")
    if size.nodes > 1 and all(own.nodes == 1 for own in series.sizes):
        on_what = "a bandwidth" if calibrated else "usual losses"
        caveats.append(f"links between nodes were not measured: from {on_what} alone")
    return Predicted(size, found.predict(size), measured, *trivial, tuple(caveats))


def _why(count: int, laws: tuple[LawFit, ...], error: float | None) -> str:
    judged = {law.name: law.leave_one_out for law in laws if law.leave_one_out is not None}
    text = "the pooled law, as for every series: a few sizes do not tell laws apart, so what is usual is part of it"
    if error is None:
        return text
    text += f"; each of the {count} sizes from the others: {percent(error, 1)} off"
    if judged:
        best = min(judged, key=lambda name: judged[name])
        text += f", the best law of the textbooks here ({best}) {percent(judged[best], 1)}"
    return text
