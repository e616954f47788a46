"""Protects CSV from formula injection: names come from folders and logs, and may contain anything."""

from __future__ import annotations

import csv
import io

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


def inert_csv(table: str) -> str:
    """Return the CSV table without formulas."""
    stream = io.StringIO()
    rows = csv.reader(io.StringIO(table, newline=""))
    csv.writer(stream, lineterminator="\n").writerows([inert(cell) for cell in row] for row in rows)
    return stream.getvalue()
