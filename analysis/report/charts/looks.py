"""Colours and shapes of series as channels, and the layers that charts of series share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from analysis.report.best import FIRST, MANY, best_series, named_series
from analysis.report.charts.chart import EVERY, choices, chosen, keep, layer, where_picked
from analysis.report.charts.names import further, identity
from analysis.report.charts.theme import HOLLOW, REFERENCE
from analysis.report.palette import LOOKS, UNNAMED
from analysis.report.series_names import names_of
from analysis.tables.point import Point
from analysis.tables.series import series_in_order

# A name that is wider than the drawing breaks between words, else within one. 6.2, 16: pixels of a letter, of the sign.
WRAPPED = r"""split(trim(replace(datum.label,
  regexp('(.{1,' + LETTERS + '})(?:\\s+|$)|(\\S{' + LETTERS + '})', 'g'),
  '$1$2\n')), '\n')""".replace("LETTERS", "max(10, floor((width - 16) / 6.2))")
FADED, PALE, PALER = 0.15, 0.14, 0.03  # opacities: of unselected series; of bands, selected and not


@dataclass(frozen=True)
class Looks:
    """Appearance of the series.

    Attributes:
        names: legend names by series key; the series that exceed the palette share one.
        domain: these names in the order of the palette.
        own: individual names of all series by key.
        letters: letters per line in print; None for the page, which has tooltips.
        colours: of the domain, where the user gave one; empty for those of the palette, which suit a dark page too.
        first: keys of the series that are shown until all are asked for; empty if there are few.
        entries: the order of the legend's entries; none for that of the domain.
    """

    names: Mapping[str, str]
    domain: Sequence[str]
    own: Mapping[str, str]
    letters: int | None = None
    colours: Sequence[str] = ()
    first: frozenset[str] = frozenset()
    entries: Sequence[str] = ()

    def row(self, point: Point) -> dict[str, Any]:
        """Return the fields of a row that the page's controls filter by, and the names of its series."""
        return {**identity(point), "name": self.names[point.series], "first": point.series in self.first}

    def chosen(self) -> list[alt.FilterTransform]:
        """Keep the rows of the series that are shown."""
        return [chosen(), *([keep(f"{EVERY} || datum.first")] if self.first else [])]

    def controls(self) -> list[alt.VariableParameter]:
        """Parameters for the page's choice of what is shown."""
        return [*choices(), *([alt.VariableParameter(name=EVERY, value=False)] if self.first else [])]

    def ordered_by(self, ends: Mapping[str, float]) -> Looks:
        """Sort the legend as the lines end, the highest first. ends: value at the largest size, by series key."""
        by_name = {self.names[key]: ends[key] for key in reversed(list(self.names)) if key in ends}
        last = [name for name in self.domain if name not in by_name or sum(n == name for n in self.names.values()) > 1]
        named = sorted((name for name in self.domain if name not in last), key=lambda name: -by_name[name])
        return replace(self, entries=[*named, *last])

    @property
    def legend_letters(self) -> int:
        """Letters of the longest entry of the legend."""
        return max((len(line) for name in self.domain for line in name.split("\n")), default=0)

    def colour(self) -> alt.Color:
        return alt.Color("name:N", scale=self._colours(), legend=self._legend())

    def stroke(self) -> alt.Stroke:
        return alt.Stroke("name:N", scale=self._colours(), legend=self._legend())

    def shape(self) -> alt.Shape:
        shapes = [LOOKS[i].shape if i < len(LOOKS) else UNNAMED.shape for i in range(len(self.domain))]
        scale = alt.Scale(domain=list(self.domain), range=shapes)
        return alt.Shape("name:N", scale=scale, legend=self._legend())

    def _legend(self) -> alt.Legend:
        entries = list(self.entries or self.domain)
        wrapped = alt.Undefined if self.letters else WRAPPED
        if not self.first:
            own = entries if self.entries else alt.Undefined
            return alt.Legend(symbolOpacity=1, values=own, labelExpr=wrapped)
        first = {self.names[key] for key in self.first}
        few = [name for name in entries if name in first]
        values = alt.ExprRef(f"{EVERY} ? {json.dumps(entries)} : {json.dumps(few)}")
        return alt.Legend(symbolOpacity=1, values=values, labelExpr=wrapped)

    def _colours(self) -> alt.Scale:
        return alt.Scale(domain=list(self.domain), range=list(self.colours) or "category")


def looks_of(points: Sequence[Point]) -> Looks:
    """Assign looks from all points, so that a series looks the same in every chart."""
    names_of_all = names_of(points)
    series = series_in_order(points)
    own = {one.key: names_of_all[one.key] for one in series}
    named = named_series(series)
    rest = further(len(own) - len(named))
    names = dict.fromkeys(own, rest) | {one.key: own[one.key] for one in named}
    domain = [own[one.key] for one in named] + ([rest] if len(own) > len(named) else [])
    asked = [one.first.shown.colour if one.first.shown else None for one in named]
    palette = [*(look.colour for look in LOOKS[: len(named)]), UNNAMED.colour]
    colours = [colour or of_palette for colour, of_palette in zip([*asked, None], palette, strict=True)][: len(domain)]
    first = best_series(series, FIRST) if len(series) >= MANY else ()
    return Looks(names, domain, own, colours=colours if any(asked) else (), first=frozenset(one.key for one in first))


def faded() -> alt.Opacity:
    return alt.Opacity(**where_picked(1, FADED))


def pale() -> alt.Opacity:
    return alt.Opacity(**where_picked(PALE, PALER))


def line(**changes: Any) -> alt.MarkDef:
    return alt.MarkDef(type="line", **{"strokeWidth": 1.8, "tooltip": None, **changes})


def band() -> alt.MarkDef:
    return alt.MarkDef(type="area", tooltip=None)


def bar(**changes: Any) -> alt.MarkDef:
    """Error bar of one point."""
    return alt.MarkDef(**{"type": "rule", "strokeWidth": 1.4, "tooltip": None, **changes})


def signs(
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    at: Sequence[alt.Transform],
    looks: Looks,
    size: int = 58,
    params: Sequence[alt.TopLevelSelectionParameter] = (),
    mark: Mapping[str, Any] | None = None,
    **encoding: Any,
) -> list[dict[str, Any]]:
    """Draw the points of a dataset in the colours and shapes of their series; hollow points have the page's background.

    Args:
        rows: rows of the dataset; `hollow` decides which of the two layers are needed (an empty one has no extent).
        params: added to one of the layers.
        mark: further properties of the marks.
    """
    full = alt.MarkDef(type="point", size=size, filled=True, tooltip=None, **(mark or {}))
    ring = alt.MarkDef(
        type="point", size=0.9 * size, filled=True, strokeWidth=1.7, style=HOLLOW, tooltip=None, **(mark or {})
    )
    of_full = {**encoding, "color": looks.colour(), "shape": looks.shape()}
    of_ring = {**encoding, "stroke": looks.stroke(), "shape": looks.shape()}
    layers = []
    if any(not row["hollow"] for row in rows):
        layers.append(layer(dataset, full, [*at, keep("!datum.hollow")], params, **of_full))
    if any(row["hollow"] for row in rows):
        own = () if layers else params
        layers.append(layer(dataset, ring, [*at, keep("datum.hollow")], own, **of_ring))
    return layers


def hovered(size: int = 420) -> alt.MarkDef:
    """Invisible hover target, larger than the symbol so that it works for fingers."""
    return alt.MarkDef(type="circle", size=size, opacity=0)


def reference_line(**changes: Any) -> alt.MarkDef:
    """Dashed line that belongs to no series."""
    return alt.MarkDef(
        **{"type": "line", "strokeDash": [5, 4], "strokeWidth": 1.2, "style": REFERENCE, "tooltip": None, **changes}
    )


def reference_text(text: str, **changes: Any) -> alt.MarkDef:
    """Label of such a line, in place of a legend."""
    style = {"align": "right", "dy": -7, "style": f"{REFERENCE}-text", "tooltip": None}
    return alt.MarkDef(type="text", text=text, **{**style, **changes})


def dotted_where(test: str) -> alt.StrokeDash:
    return alt.StrokeDash(condition={"test": test, "value": [2, 2]}, value=[1, 0])


def tooltips(**titles: str) -> list[alt.Tooltip]:
    """Return tooltips for fields of the rows, by title. Values are strings, so the page shows them as text."""
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]
