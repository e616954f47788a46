"""Frames and headings of the terminal's tables."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from analysis.base.column import Column
from analysis.base.text import printable

LONGEST_HEADING = 12  # characters; longer ones are replaced by the short heading


def framed(title: str, wide: bool = False) -> Table:
    """Return an empty table under its title. wide: with lines above and below, for tables of every column."""
    return Table(
        title=Text(printable(title), style="bold"),
        title_justify="left",
        box=box.HORIZONTALS if wide else box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=wide,
        header_style="bold",
    )


def heading(column: Column, wide: bool = False) -> str:
    """Return the heading as the terminal has it: in lower case, and short unless there is room."""
    whole = wide and len(column.heading) <= LONGEST_HEADING
    text = (column.heading if whole else column.short or column.heading) or column.name
    return text[:1].lower() + text[1:]


def stacked(*columns: Column, wide: bool = False) -> str:
    """Return the heading of a column whose rows have several lines."""
    return "\n".join(heading(column, wide) for column in columns)
