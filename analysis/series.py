"""What a series is called: the same words in table, plot and report, and no two series with the same words."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from analysis.text import count, printable
from harness.spec import WEAK


def name_series(series: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """(label, detail) of each series, given by its key (JSON of what its points share) and one of its runs.

    The detail is empty unless other series have the same label; it then says in which fields of the spec this one
    differs from them.
    """
    by_label: dict[str, list[str]] = defaultdict(list)
    for key, run in series.items():
        by_label[_label(run)].append(key)
    names = {}
    for label, keys in by_label.items():
        fields = {key: _flat(json.loads(key)) for key in keys}
        differing = [name for name in _all_names(fields) if len({f.get(name, "none") for f in fields.values()}) > 1]
        for key in keys:
            detail = ", ".join(f"{name}={fields[key].get(name, 'none')}" for name in differing)
            names[key] = (label, printable(detail))
    return names


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """A sort key under which resnet20 comes before resnet110, and a batch of 64 before one of 1,024."""
    parts = re.split(r"([0-9]{1,18})", text.replace(",", ""))
    return [(1, int(part), "") if part.isdecimal() and part.isascii() else (0, 0, part) for part in parts if part]


def _label(run: Mapping[str, Any]) -> str:
    if run["scaling"] == WEAK:
        batch = f"{count(run['batch_per_gpu'])} per {'rank' if run['device'] == 'cpu' else 'GPU'}"
    else:
        batch = f"global batch {count(run['global_batch'])}"
    what = f"{run['framework']} {run['strategy']}, {run['model']} on {run['dataset']}"
    return f"{what} ({run['scaling']} scaling, {batch})"


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        flat: dict[str, str] = {}
        for name, inner in value.items():
            flat |= _flat(inner, f"{prefix}.{name}" if prefix else str(name))
        return flat
    return {prefix: value if isinstance(value, str) else json.dumps(value)}


def _all_names(fields: Mapping[str, Mapping[str, str]]) -> list[str]:
    return sorted({name for flat in fields.values() for name in flat})
