"""Tables as pandas has them, and as rows of plain Python values."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import pandas as pd

# The rows of tables that still exist: all parts of a report ask for those of the same two.
_ROWS: dict[int, tuple[weakref.ref[pd.DataFrame], list[dict[str, Any]]]] = {}


def frame_of(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    """The rows as a table with just these columns, of these pandas types; NA for what a row lacks."""
    return pd.DataFrame({name: pd.array([row.get(name) for row in rows], dtype=kind) for name, kind in columns.items()})


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dicts of plain Python values, with None for everything absent. They are made once for a table, which
    is not to change: nor are they."""
    kept = _ROWS.get(id(frame))
    if kept is None or kept[0]() is not frame:
        columns = {name: frame[name].array.to_numpy(dtype=object, na_value=None).tolist() for name in frame.columns}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        key = id(frame)
        kept = _ROWS[key] = (weakref.ref(frame, lambda gone: _forget(key, gone)), rows)
    return list(kept[1])


def without(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The table without a column; its rows are those of the whole one, and still have it."""
    part, rows = frame.drop(columns=column), records(frame)
    key = id(part)
    _ROWS[key] = (weakref.ref(part, lambda gone: _forget(key, gone)), rows)
    return part


def _forget(key: int, gone: weakref.ref[pd.DataFrame]) -> None:
    if key in _ROWS and _ROWS[key][0] is gone:
        del _ROWS[key]
