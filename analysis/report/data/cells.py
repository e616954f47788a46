"""Protects CSV from formula injection: names come from folders and logs, and may contain anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from analysis.base.column import TEXT, Column

if TYPE_CHECKING:
    import pandas as pd

# First characters of a spreadsheet's formula (OWASP, "CSV Injection").
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def inert(text: str) -> str:
    """Prefix text that a spreadsheet would run with an apostrophe; numbers stay as they are."""
    if not text.startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def csv_of_frame(frame: pd.DataFrame, columns: Mapping[str, Column]) -> str:
    """Format as CSV, with an apostrophe before text that a spreadsheet would run; absent values are empty."""
    texts = [name for name, column in columns.items() if column.kind == TEXT]
    frame = frame.assign(**{name: frame[name].map(inert, na_action="ignore") for name in texts})
    return frame.to_csv(index=False, lineterminator="\n")
