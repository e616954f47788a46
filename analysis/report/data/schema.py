"""The columns that report.json takes from the tables, and its JSON Schema, report.schema.json.

After a change of columns, `python -m analysis.report.data.schema` updates the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.base.column import COUNT, LOGICAL, REAL, TEXT, Column, table
from analysis.measures import comparisons, data_price, decisions, learning, resources
from analysis.read.run import COMPLETED, FAILED, INVALID, MISSING, UNFINISHED, UNREADABLE
from analysis.report import losses
from analysis.report.data.csv_tables import DAMAGE
from analysis.tables.columns import POINT

FILE = Path(__file__).with_name("report.schema.json")
FIGURE = "#/$defs/figure"
WIDTH = 160  # characters of a line of the file
JSON_TYPES = {TEXT: "string", COUNT: "integer", REAL: "number", LOGICAL: "boolean"}
RUN = table(
    Column("run_id", TEXT, "name of its folder in runs/", optional=False),
    Column("status", TEXT, "status of the run", choices=(COMPLETED, FAILED, UNFINISHED, UNREADABLE, INVALID, MISSING)),
    Column("reason", TEXT, "why the run did not complete"),
    Column("notes", TEXT, "further remarks from its logs"),
    Column("point", COUNT, "index of its point in points, from 0; null if its spec could not be read"),
    Column("seed", COUNT, "seed of the weights and of the order of samples"),
    Column("repeat", COUNT, "index of the repetition"),
    Column("attempts", COUNT, "number of attempts"),
    Column("code_version", TEXT, "version of this program when the run was submitted"),
)


def _described(columns: Mapping[str, Column]) -> list[Column]:
    """Return the columns that report.json includes."""
    return [column for column in columns.values() if column.about]


def _own(columns: Mapping[str, Column]) -> list[Column]:
    """Return the same without the columns of the point."""
    return [column for column in _described(columns) if POINT.get(column.name) is not column]


# Columns by name of the schema's definition.
PARTS = {
    "point": [column for column in _described(POINT) if not column.unit],
    "figures": [column for column in _described(POINT) if column.unit],
    "breakdown": _own(losses.COLUMNS),
    "decisions": _own(decisions.COLUMNS),
    "learning": _described(learning.POINT_COLUMNS),
    "resources": _own(resources.COLUMNS),
    "comparison": _described(comparisons.COLUMNS),
    "data_price": [*(c for c in _described(data_price.COLUMNS) if c.name in POINT), *_own(data_price.COLUMNS)],
    "run": _described(RUN),
    "damage": _described(DAMAGE),
}


def schema() -> dict[str, Any]:
    """Return report.schema.json with the current columns."""
    document: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    for name, columns in PARTS.items():
        about = document["$defs"][name]
        others = _others(about["properties"]) if name == "point" else {}
        about["properties"] = {column.name: _property(column) for column in columns} | others
        about["required"] = [*(column.name for column in columns if not column.unit), *others]
    return document


def _others(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's properties that are not columns: those from `marks` on."""
    names = list(properties)
    return {name: properties[name] for name in names[names.index("marks") :]}


def _property(column: Column) -> dict[str, Any]:
    if column.unit:
        unit = "a number without unit" if column.unit == "1" else f"in {column.unit}"
        figure = {"$ref": FIGURE, "description": f"{column.about}, {unit}", "unit": column.unit}
        return figure | ({"basis": column.basis_name} if column.basis_name else {})
    if column.choices:
        return {"enum": list(column.choices), "description": column.about}
    kind = JSON_TYPES[column.kind]
    least = {"minimum": column.least} if column.kind == COUNT else {}
    return {"type": [kind, "null"] if column.optional else kind, **least, "description": column.about}


def _text(value: Any, key: str = "", indent: str = "") -> str:
    """Format as JSON, with objects on one line if they fit and contain no others."""
    line = key + json.dumps(value, ensure_ascii=False)
    long = len(indent + line) > WIDTH
    if not isinstance(value, dict) or not (
        long or any(isinstance(one, dict) and len(one) > 1 for one in value.values())
    ):
        return line
    inner = (_text(one, f"{json.dumps(name)}: ", indent + "  ") for name, one in value.items())
    return f"{key}{{\n" + ",\n".join(f"{indent}  {one}" for one in inner) + f"\n{indent}}}"


if __name__ == "__main__":
    FILE.write_text(_text(schema()) + "\n", encoding="utf-8")
