"""Converts rows of plain Python values to tables: of Arrow, and of pandas, which takes long to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.json as pa_json

if TYPE_CHECKING:
    import pandas as pd

# Arrow's default pool does not return freed memory: after 10,000 runs were read, it held half of the process's.
pa.set_memory_pool(pa.system_memory_pool())

ROWS_AT_ONCE = 1000  # a row has about 10 kB
_JSON = msgspec.json.Encoder()
# Texts as indices into a dictionary, which are read in half the time.
ENCODED = pa.dictionary(pa.int32(), pa.string())
_ARROW = {"string": pa.string(), "Int64": pa.int64(), "Float64": pa.float64(), "boolean": pa.bool_()}


def frame_of(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows as a table with exactly these columns, of these pandas types; NA where a row lacks one."""
    import pandas as pd

    return pd.DataFrame({name: pd.array([row.get(name) for row in rows], dtype=kind) for name, kind in columns.items()})


def table_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pa.Table:
    """Return the rows as a table with exactly these columns, of these pandas types; null where a row lacks one, and
    for NaN and infinity, which JSON cannot represent. JSON, because pyarrow.array imports pandas if it is installed.
    """
    schema = schema_of(columns)
    parse = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    tables = []
    for first in range(0, len(rows), ROWS_AT_ONCE):
        lines = _JSON.encode_lines(rows[first : first + ROWS_AT_ONCE])
        read = pa_json.ReadOptions(use_threads=False, block_size=len(lines))
        tables.append(pa_json.read_json(pa.BufferReader(lines), read, parse))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def schema_of(columns: Mapping[str, str], text: pa.DataType = _ARROW["string"]) -> pa.Schema:
    """Return the schema of these columns, of these pandas types. text: type of texts, such as ENCODED."""
    return pa.schema([(name, text if kind == "string" else _ARROW[kind]) for name, kind in columns.items()])


def records(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dicts of plain Python values, with None for missing ones."""
    names, columns = table.column_names, [_values(column) for column in table.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, with one copy of equal texts: the runs of a series share their configuration."""
    copies: dict[Any, Any] = {}
    if pa.types.is_string(column.type):
        return [copies.setdefault(text, text) for text in column.to_pylist()]
    if not pa.types.is_dictionary(column.type):
        return column.to_pylist()
    values: list[str | None] = []
    for chunk in column.chunks:
        texts = [copies.setdefault(text, text) for text in chunk.dictionary.to_pylist()]
        values += [None if i is None else texts[i] for i in chunk.indices.to_pylist()]
    return values
