"""What is wrong with the runs' files, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.frames import frame_of

COLUMNS = {**dict.fromkeys(["run_id", "file", "kind"], "string"), "count": "Int64", "sentence": "string"}


def damage_csv(damage: Sequence[Mapping[str, Any]]) -> str:
    """One line per file and kind."""
    return frame_of([dict(row) for row in damage], COLUMNS).to_csv(index=False, lineterminator="\n")
