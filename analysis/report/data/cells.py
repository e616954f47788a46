"""Protects CSV from formula injection: names come from folders and logs, and may contain anything."""

from __future__ import annotations

import csv
import io
import re

# First characters of a spreadsheet's formula (OWASP, "CSV Injection").
FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MAY_BEGIN_ONE = re.compile(r'(?:^|[,\n])"?[=+\-@\t\r]')


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
    if not _MAY_BEGIN_ONE.search(table):  # nearly always: lists of runs are long
        return table
    stream = io.StringIO()
    rows = csv.reader(io.StringIO(table, newline=""))
    csv.writer(stream, lineterminator="\n").writerows([inert(cell) for cell in row] for row in rows)
    return stream.getvalue()
