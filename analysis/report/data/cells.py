"""Texts in CSV that a spreadsheet would take for formulas: names come from folders and logs, and may hold anything."""

from __future__ import annotations

import csv
import io

# With these a spreadsheet's formula begins (OWASP, "CSV Injection").
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def inert(text: str) -> str:
    """The text with an apostrophe before it, if a spreadsheet would run it; numbers stay as they are."""
    if not text.startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def inert_csv(table: str) -> str:
    """A CSV table in which no cell is a formula."""
    stream = io.StringIO()
    rows = csv.reader(io.StringIO(table, newline=""))
    csv.writer(stream, lineterminator="\n").writerows([inert(cell) for cell in row] for row in rows)
    return stream.getvalue()
