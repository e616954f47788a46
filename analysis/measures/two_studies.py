"""`python -m analysis compare A B`: two studies of two machines, or of two versions of the code: which points became
faster or slower, and which differences are significant.

Points match if their specs are equal except for ELSEWHERE, what the comparison may be about. The test is that of
`analysis.measures.comparisons`: Welch's t test on logarithms with Holm's correction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis.base.constants import IMPORTED, OWN_TRAININGS
from analysis.base.errors import StudyError
from analysis.base.text import DASH, number, percent, probability_text, span, times
from analysis.stats.estimates import ALPHA, Ratio, holm, rate_ratio
from analysis.stats.intervals import Interval
from analysis.tables.bases import basis_text
from analysis.tables.pairing import flat, pairing, spec_of, without
from analysis.tables.point import Point

if TYPE_CHECKING:
    from analysis.read.study import Study

# Fields in which specs of matching points may differ: where, and for how long, it was measured.
ELSEWHERE = ("cluster", "environment", "env", "placement", "measure", "checkpoint")
SIZE = ("gpus", "global_batch", "batch_per_gpu")
# A point that differs in more keys is another one.
NEAR = 3
# Columns of a point whose differences are reported.
SAID = ("cluster", "device_names", "nodes", "communication", "versions", "code_versions")
UNKNOWN = "unknown"  # no run logged it

REGRESSION, FASTER, LOST = "regression", "faster", "lost"
NOT_SHOWN, BELOW_THRESHOLD, NOT_TESTED = "no difference shown", "below the threshold", "not tested"

NOTE = (
    "Ratio: throughput in the second study by that in the first, with its 95 % interval. Worse or faster is what "
    f"Welch's t test on the logarithms of seconds per sample shows, with Holm's correction over all pairs, {ALPHA:g} "
    "for all together, and is at least as large as the threshold. What is not shown to differ is not shown to be equal."
)


@dataclass(frozen=True)
class Pair:
    """One point in both studies. ratio: throughput in the second divided by that in the first; None if one has none.
    basis: what its interval comes from, or why there is none. p: corrected; None if not tested. differences: other
    differences between the two, in words."""

    name: str
    marks: tuple[str, ...]
    ratio: Interval | None
    basis: str
    p: float | None
    verdict: str
    differences: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        figures = ("ratio", "low", "high")
        values = (None, None, None) if self.ratio is None else self.ratio[:3]
        return dict.fromkeys(("name", "marks", *figures)) | vars(self) | dict(zip(figures, values, strict=True))

    def sentence(self) -> str:
        if self.ratio is None:
            return f"{self.name}: {self.verdict}: {self.basis}"
        interval = span(*self.ratio.ends, times)
        found = self.basis if None in self.ratio.ends else f"{interval}, from {self.basis}"
        tested = f", p {probability_text(self.p)}" if self.p is not None else ""
        marks = "".join(f"; {mark}" for mark in self.marks)
        return f"{self.name}: {self.verdict}, {times(self.ratio.estimate)} ({found}{tested}{marks})"


@dataclass(frozen=True)
class Comparison:
    """pairs: in the order of the first study's points. only: sentences on points that only one study has, or that
    are ambiguous in one. unit: what throughputs count, of the first pair with figures; None if there is none."""

    pairs: tuple[Pair, ...]
    only: tuple[str, ...]
    unit: str | None = None

    def exit_code(self) -> int:
        """0: tested, no regression; 1: a regression, or a point that no longer completes; 3: nothing could be
        tested."""
        if any(pair.verdict in (REGRESSION, LOST) for pair in self.pairs):
            return 1
        return 0 if any(pair.p is not None for pair in self.pairs) else 3


Measured = tuple["Study", Sequence[Point]]


def compare(first: Measured, second: Measured, threshold: float, ignore: Sequence[str] = ()) -> Comparison:
    """Compare two studies.

    Args:
        first, second: studies with their points (`analysis.measures.speedup`).
        threshold: smallest relative change of throughput that counts.
        ignore: further fields of the spec in which points may differ, such as optimizer.lr.

    Raises:
        StudyError: no point has a field to ignore.
    """
    own = any(point.framework in OWN_TRAININGS for _, points in (first, second) for point in points)
    if own and ignore:
        raise StudyError("--ignore is for networks of the catalogue; other trainings are paired by what they agree in")
    known = {name for _, points in (first, second) for point in points for name in flat(spec_of(point.series))}
    for name in ignore:
        if not any(each == name or each.startswith(f"{name}.") for each in known):
            raise StudyError(f"--ignore {name}: no point has it; there are {', '.join(sorted(known))}")
    if own:
        return _compared_by_facts(first, second, threshold)
    fields = (*ELSEWHERE, *ignore)
    before, after = (pairing(points, fields, SIZE) for _, points in (first, second))
    names = [study.name for study, _ in (first, second)]
    pairs, only = [], []
    for key in dict.fromkeys((*before, *after)):
        found = [points.get(key, []) for points in (before, after)]
        if any(len(points) > 1 for points in found):
            only.append(f"{_name(found[0] or found[1])}: not compared: a study measured it in several ways")
        elif not all(found):
            here, other = (0, 1) if found[0] else (1, 0)
            far = [points[0] for key, points in (before, after)[other].items() if key not in (before, after)[here]]
            apart = _nearest(found[here][0], far, fields)
            differs = f"; the nearest point of {names[other]} differs in {apart}" if apart else ""
            only.append(f"{_name(found[here])}: only in {names[here]}{differs}")
        else:
            pairs.append((found[0][0], found[1][0]))
    return Comparison(tuple(_tested(pairs, threshold)), tuple(only), _unit(pairs))


def _nearest(point: Point, others: Sequence[Point], ignored: Sequence[str]) -> str:
    """Return in which few keys the nearest of the other points differs; empty if none is near."""

    def keys(one: Point) -> dict[str, Any]:
        return flat(spec_of(without(one.series, *ignored))) | {name: getattr(one, name) for name in SIZE}

    own = keys(point)
    differences = [
        [
            f"{name} ({own.get(name)} | {found.get(name)})"
            for name in sorted({*own, *found})
            if own.get(name) != found.get(name)
        ]
        for found in map(keys, others)
    ]
    least = min(differences, key=len, default=[])
    return ", ".join(least) if len(least) <= NEAR else ""


def _unit(pairs: Sequence[tuple[Point, Point]]) -> str | None:
    return next((before.unit for before, after in pairs if before.completed or after.completed), None)


def _compared_by_facts(first: Measured, second: Measured, threshold: float) -> Comparison:
    """Compare trainings of the user's own, of which little is known, and whose code changes: each point with that
    point of the same size in the other that contradicts it in the fewest facts that both state."""
    near: dict[int, list[tuple[int, Point, Point]]] = defaultdict(list)  # by the point of the second
    only, unclear = [], set()
    for before in first[1]:
        alike = [p for p in second[1] if (p.gpus, p.unit) == (before.gpus, before.unit)]
        contradictions = {id(after): len(_contradictions(before, after)) for after in alike}
        least = min(contradictions.values(), default=0)
        nearest = [after for after in alike if contradictions[id(after)] == least]
        if len(nearest) == 1:
            near[id(nearest[0])].append((least, before, nearest[0]))
        elif nearest:
            unclear |= {id(after) for after in nearest}
            only.append(f"{_name([before])}: not compared: {len(nearest)} points of {second[0].name} could be the same")
        else:
            only.append(f"{_name([before])}: only in {first[0].name}")
    pairs = []
    for found in near.values():
        least = min(contradicted for contradicted, _, _ in found)
        alike_too = [(before, after) for contradicted, before, after in found if contradicted == least]
        only += [f"{_name([before])}: only in {first[0].name}" for others, before, _ in found if others > least]
        if len(alike_too) == 1:
            pairs += alike_too
        else:
            after = alike_too[0][1]
            only.append(f"{_name([after])}: not compared: {len(alike_too)} points of {first[0].name} could be the same")
    named = {*near, *unclear}
    only += [f"{_name([after])}: only in {second[0].name}" for after in second[1] if id(after) not in named]
    order = {id(point): n for n, point in enumerate(first[1])}
    pairs.sort(key=lambda pair: order[id(pair[0])])
    tested = _tested(pairs, threshold)
    return Comparison(
        tuple(
            replace(pair, differences=_said_apart(pair, before, after))
            for pair, (before, after) in zip(tested, pairs, strict=True)
        ),
        tuple(only),
        _unit(pairs),
    )


def _said_apart(pair: Pair, before: Point, after: Point) -> tuple[str, ...]:
    """What differs, and both throughputs. What is never known of a table says nothing beside a study."""
    said = [_rates(before, after), *_facts_apart(before, after)]
    both = IMPORTED not in (before.framework, after.framework)
    return tuple(dict.fromkeys([*said, *(pair.differences if both else ())]))


def _rates(before: Point, after: Point) -> str:
    texts = [
        DASH if point.samples_per_second is None else f"{number(point.samples_per_second)} {point.rate_unit}"
        for point in (before, after)
    ]
    return f"throughput: {texts[0]} | {texts[1]}"


def _contradictions(before: Point, after: Point) -> list[str]:
    first, second = facts(before), facts(after)
    return [name for name in first if name in second and first[name] != second[name]]


def _facts_apart(before: Point, after: Point) -> list[str]:
    first, second = facts(before), facts(after)
    names = [name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name)]
    return [f"{name}: {first.get(name, UNKNOWN)} | {second.get(name, UNKNOWN)}" for name in names]


def facts(point: Point) -> dict[str, str]:
    """Return the facts that identify a point, by column; for a point of a table, the columns of that table."""
    counts = {"nodes": point.nodes, "global_batch": point.global_batch, "unit": point.unit}
    own = {name: str(value) for name, value in counts.items() if value is not None}
    spec = spec_of(point.series)
    if point.framework == IMPORTED:
        return own | dict(spec["columns"])
    if workload := spec.get("workload"):
        params = {str(name): str(value) for name, value in (workload.get("params") or {}).items()}
        about = {"workload": point.model, "command": " ".join(workload["command"]), "code": workload["code"]}
        where = {"environment": str(spec["environment"]), "cluster": point.cluster}
        return own | about | where | params
    names = ("framework", "strategy", "model", "dataset", "precision", "cluster")
    return own | {name: str(getattr(point, name)) for name in names}


def _tested(
    pairs: Sequence[tuple[Point, Point]],
    threshold: float,
) -> list[Pair]:
    ratios = [
        rate_ratio(after.cost, before.cost) if before.completed and after.completed else None for before, after in pairs
    ]
    testable = {
        i: found
        for i, (pair, found) in enumerate(zip(pairs, ratios, strict=True))
        if found is not None and not found.missing and all(point.runs_completed > 1 for point in pair)
    }
    corrected = dict(zip(testable, holm([found.p_value() for found in testable.values()]), strict=True))
    return [
        _pair(before, after, found, corrected.get(i), threshold)
        for i, ((before, after), found) in enumerate(zip(pairs, ratios, strict=True))
    ]


def _pair(before: Point, after: Point, found: Ratio | None, p: float | None, threshold: float) -> Pair:
    marks = tuple(dict.fromkeys([*before.marks, *after.marks]))
    first, second = before.row(), after.row()
    differences = tuple(
        f"{name.replace('_', ' ')}: {first[name] or UNKNOWN} | {second[name] or UNKNOWN}"
        for name in SAID
        if first[name] != second[name]
    )
    if found is None:
        lost = before.runs_completed > 0
        verdict = LOST if lost else NOT_TESTED
        basis = f"{before.status} before, {after.status} now"
        return Pair(_name([before]), marks, None, basis, None, verdict, differences)
    ratio = found.interval()
    if p is None:
        verdict = NOT_TESTED
    elif p >= ALPHA:
        verdict = NOT_SHOWN
    elif abs(found.value - 1) < threshold:
        verdict = BELOW_THRESHOLD
    else:
        verdict = FASTER if found.value > 1 else REGRESSION
    return Pair(_name([before]), marks, ratio, basis_text(ratio), p, verdict, differences)


def _name(points: Sequence[Point]) -> str:
    return f"{points[0].name}, {points[0].size}"


def sentences(comparison: Comparison, threshold: float) -> list[str]:
    """All results in words, the worst first."""
    order = (LOST, REGRESSION, FASTER, BELOW_THRESHOLD, NOT_SHOWN, NOT_TESTED)
    ordered = sorted(comparison.pairs, key=lambda pair: order.index(pair.verdict))
    worse = sum(pair.verdict in (LOST, REGRESSION) for pair in ordered)
    tested = sum(pair.p is not None for pair in ordered)
    head = f"{len(ordered)} points in both, {tested} tested, {worse} worse (by {percent(threshold, 1)} or more)"
    said: list[str] = []
    for pair in ordered:
        said += [pair.sentence(), *(f"    {difference}" for difference in pair.differences)]
    return [head, *said, *comparison.only]
