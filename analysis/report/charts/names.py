"""Words of charts: sizes, batches, warnings, notes."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.base.text import count, printable, shortened
from analysis.report.sentences import baseline
from analysis.tables.point import Point

LABEL_LENGTH = 300  # characters


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


def _rank(point: Point) -> str:
    return "rank" if point.device == "cpu" else "GPU"
