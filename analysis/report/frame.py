"""The frame that the terminal's tables share."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from analysis.base.text import printable


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
