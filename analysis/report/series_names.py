"""Names of series, as short as possible while distinct: the same in the sentences, the charts and the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from analysis.base.text import printable, shortened
from analysis.tables.point import Point
from analysis.tables.series import Series, scaling_text, series_of

NAME_LENGTH = 80  # characters
IN_ORDER = ("what", "model", "dataset", "scaling", "precision", "cluster", "device", "detail")


def names_of(points: Iterable[Point]) -> dict[str, str]:
    """Return the names of the measured series of a study by series key."""
    return short_names(measured_series(points))


def measured_series(points: Iterable[Point]) -> list[Series]:
    """Return the series to be told apart: those with a measured point, the framework alone among them."""
    return series_of(point for point in points if point.measured)


def short_names(series: Sequence[Series]) -> dict[str, str]:
    """Return unique short names by series key: framework and strategy, and what else differs between the series."""
    parts = {one.key: _parts(one.first) for one in series}
    differing = _differing(series)
    labels = {one.key: one.first.shown.label for one in series if one.first.shown is not None}
    names: dict[str, str] = {}
    for key, of in parts.items():
        own = labels.get(key)
        name = shortened(printable(own or ", ".join(of[part] for part in differing if of[part])), NAME_LENGTH)
        name = name or "others"
        same = Counter(names.values())
        names[key] = name if name not in same else _another(name, names.values())
    return names


def common_words(series: Sequence[Series]) -> str:
    """Describe the properties that all series share, which their short names omit."""
    first = _parts(series[0].first)
    agreed = [name for name in IN_ORDER if name not in _differing(series)]
    return printable(", ".join(first[name] for name in agreed if first[name]))


def _differing(series: Sequence[Series]) -> list[str]:
    """Return the properties that names consist of: framework and strategy, and those that differ between series."""
    parts = [_parts(one.first) for one in series]
    differing = [name for name in IN_ORDER if len({of[name] for of in parts}) > 1]
    # The name of a training of the user's own is that of the study, or of the table.
    always = [] if differing and all(one.first.is_own for one in series) else ["what"]
    return [name for name in IN_ORDER if name in (*always, *differing)]


def _parts(point: Point) -> dict[str, str]:
    return {
        "what": point.how,
        "scaling": scaling_text(point),
        **{name: getattr(point, name) or "" for name in IN_ORDER[1:] if name != "scaling"},
        **(dict.fromkeys(("model", "dataset", "precision"), "") if point.is_own else {}),
        "detail": point.other_detail,
    }


def _another(name: str, taken: Iterable[str]) -> str:
    n = 2
    while f"{name} ({n})" in taken:
        n += 1
    return f"{name} ({n})"
