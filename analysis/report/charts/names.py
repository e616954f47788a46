"""Names of series in charts: as short as possible while distinct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.base.text import count, printable, shortened
from analysis.report.sentences import baseline
from analysis.tables.point import Point
from analysis.tables.series import Series
from harness.core.spec import WEAK

NAME_LENGTH, LABEL_LENGTH = 80, 300  # characters
IN_ORDER = ("what", "model", "dataset", "scaling", "precision", "cluster", "device", "detail")


def short_names(series: Sequence[Series]) -> dict[str, str]:
    """Return unique short names by series key: the properties in which a series differs from the others."""
    parts = {one.key: _parts(one.first) for one in series}
    differing = _differing(list(parts.values()))
    names: dict[str, str] = {}
    for key, of in parts.items():
        name = shortened(printable(", ".join(of[part] for part in differing if of[part])), NAME_LENGTH) or "others"
        same = Counter(names.values())
        names[key] = name if name not in same else _another(name, names.values())
    return names


def common_words(series: Sequence[Series]) -> str:
    """Describe the properties that all series share, which their short names omit."""
    parts = [_parts(one.first) for one in series]
    agreed = [name for name in IN_ORDER if name not in _differing(parts)]
    return printable(", ".join(parts[0][name] for name in agreed if parts[0][name]))


def relative_to(points: Sequence[Point]) -> str:
    """The baseline of these points, if they share one."""
    bases = {baseline(point) for point in points}
    return f"relative to {bases.pop() if len(bases) == 1 else 'what the legend says of each series'}"


def further(n: int) -> str:
    """Name shared by the series that exceed the palette."""
    return f"{n} further series"


def identity(point: Point) -> dict[str, str]:
    """Return the values that the page's controls filter by, and the full name of the series."""
    chosen = {name: printable(getattr(point, name)) for name in ("framework", "model", "strategy")}
    return {**chosen, "series": shortened(printable(point.series_name), LABEL_LENGTH)}


def where(point: Point) -> str:
    """Format as '8 GPUs on 2 nodes'."""
    return point.size + (f" on {point.nodes} nodes" if point.nodes > 1 else "")


def batches(point: Point) -> str:
    """Format as '1,024 in all, 128 per GPU'."""
    return f"{count(point.global_batch)} in all, {count(point.batch_per_gpu)} per {_rank(point)}"


def runs_text(point: Point) -> str:
    """Format as '3', or '2 of 3' if some runs did not complete."""
    done, asked = point.runs_completed, point.runs_all
    return str(done) if done == asked else f"{done} of {asked}"


def marks_text(point: Point) -> str:
    return printable(", ".join(point.marks)) or "none"


def minus(text: str) -> str:
    """Use a real minus sign, as the axes do."""
    return text.replace("-", "−")


def only_in_table(drawn: int, every: int, what: str = "points") -> list[str]:
    """Note how many of these a chart omits; [] if none."""
    return [f"{every - drawn:,} of {every:,} {what} are in the table alone"] if drawn < every else []


def sentence(parts: Sequence[str]) -> str:
    """Join the parts of a note into one sentence."""
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _differing(parts: Sequence[Mapping[str, str]]) -> list[str]:
    return [name for name in IN_ORDER if len({of[name] for of in parts}) > 1] or ["what"]


def _parts(point: Point) -> dict[str, str]:
    batch = point.batch_per_gpu if point.scaling == WEAK else point.global_batch
    per = f" per {_rank(point)}" if point.scaling == WEAK else " in all"
    return {
        "what": point.how,
        "scaling": f"{point.scaling} scaling, {count(batch)}{per}",
        **{name: getattr(point, name) or "" for name in IN_ORDER[1:] if name != "scaling"},
        **(dict.fromkeys(("model", "dataset", "precision"), "") if point.is_own else {}),
    }


def _rank(point: Point) -> str:
    return "rank" if point.device == "cpu" else "GPU"


def _another(name: str, taken: Any) -> str:
    n = 2
    while f"{name} ({n})" in taken:
        n += 1
    return f"{name} ({n})"
