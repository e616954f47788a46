"""Converts tables between pandas and rows of plain Python values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def frame_of(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows as a table with exactly these columns, of these pandas types; NA where a row lacks one."""
    return pd.DataFrame({name: pd.array([row.get(name) for row in rows], dtype=kind) for name, kind in columns.items()})


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dicts of plain Python values, with None for missing ones."""
    columns = {name: frame[name].array.to_numpy(dtype=object, na_value=None).tolist() for name in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
