"""Converts rows of plain Python values to tables: of Arrow, and of pandas, which takes long to import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd

# Arrow's default pool does not return freed memory: after 10,000 runs were read, it held half of the process's.
pa.set_memory_pool(pa.system_memory_pool())

_ARROW = {"string": pa.string(), "Int64": pa.int64(), "Float64": pa.float64(), "boolean": pa.bool_()}


def frame_of(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows as a table with exactly these columns, of these pandas types; NA where a row lacks one."""
    import pandas as pd

    return pd.DataFrame({name: pd.array([row.get(name) for row in rows], dtype=kind) for name, kind in columns.items()})


def table_of(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pa.Table:
    """Return the rows as a table with exactly these columns, of these pandas types; null where a row lacks one, and
    for NaN."""
    rows = list(rows)
    arrays = [
        pa.array([row.get(name) for row in rows], _ARROW[kind], from_pandas=True) for name, kind in columns.items()
    ]
    return pa.Table.from_arrays(arrays, schema=schema_of(columns))


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()])


def records(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dicts of plain Python values, with None for missing ones."""
    names, columns = table.column_names, [_shared(column.to_pylist()) for column in table.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _shared(values: list[Any]) -> list[Any]:
    """Keep one copy of equal texts, such as the configuration that the runs of a series share."""
    first: dict[Any, Any] = {}
    return [first.setdefault(value, value) if type(value) is str else value for value in values]
