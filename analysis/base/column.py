"""Columns of tables: the one description of a column for the terminal, HTML, LaTeX, CSV and report.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.base.text import number, span

TEXT, COUNT, REAL, LOGICAL = "string", "Int64", "Float64", "boolean"  # pandas types
RANGE = ("low", "high")  # ends of an interval
INTERVAL = (*RANGE, "basis")  # and what it comes from, or why there is none


@dataclass(frozen=True)
class Column:
    """A column of a table. Rows are mappings, or objects with attributes of these names."""

    name: str
    kind: str  # pandas type
    about: str = ""  # what it holds, without the unit; report.json leaves out columns without it
    heading: str = ""
    show: Callable[[Any], str] = str
    short: str = ""  # heading where there is little room
    unit: str = ""  # of a figure; report.json gives figures with interval and warnings; "1": a ratio
    ends: tuple[str, ...] = ()  # suffixes of the columns that follow it, such as INTERVAL
    basis: str = ""  # column that says what the interval comes from, if it is not among the ends
    optional: bool = True  # whether report.json may have null
    least: int = 0  # of a count
    choices: tuple[str, ...] = ()  # all values of a text, if they are few

    @property
    def basis_name(self) -> str:
        """The column that says what the interval comes from; "": there is none."""
        return f"{self.name}_basis" if "basis" in self.ends else self.basis

    def value(self, row: Any, end: str = "") -> Any:
        """Its value in a row, or that of the column with this suffix; None if the row has none."""
        name = f"{self.name}_{end}" if end else self.name
        return row.get(name) if isinstance(row, Mapping) else getattr(row, name)

    def text(self, row: Any) -> str:
        return self.show(self.value(row))

    def interval(self, row: Any) -> str:
        """'3.1–3.4', or a dash."""
        return span(self.value(row, "low"), self.value(row, "high"), self.show)


def figure(
    name: str,
    unit: str,
    about: str,
    heading: str = "",
    show: Callable[[Any], str] = number,
    ends: tuple[str, ...] = (),
    basis: str = "",
    short: str = "",
    kind: str = REAL,
) -> Column:
    """A column of figures with a unit."""
    return Column(name, kind, about, heading, show, short, unit, ends, basis)


def table(*columns: Column) -> dict[str, Column]:
    """The columns of a table by name, each followed by those of its ends."""
    found = {}
    for column in columns:
        found[column.name] = column
        for end in column.ends:
            name = f"{column.name}_{end}"
            found[name] = Column(name, TEXT if end == "basis" else column.kind)
    return found
