"""Packs the measured blocks of a run into one short text, a cell of the run's row.

Seconds are base64-encoded doubles, a third of the size of decimal digits. Evenly spaced integers, such as the steps of
nearly every run, are stored as first value and increment.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from analysis.read.log.values import Block


class Blocks(NamedTuple):
    """Columns of blocks, ordered by time.

    Attributes:
        step: first step of each block.
        steps: number of steps.
        seconds: duration.
        samples: samples of all ranks.
    """

    step: list[int]
    steps: list[int]
    seconds: list[float]
    samples: list[int]


def packed(blocks: Sequence[Block]) -> str:
    """Pack blocks as ASCII JSON."""
    seconds = struct.pack(f"<{len(blocks)}d", *(block.seconds for block in blocks))
    columns = {
        "step": _even([block.step for block in blocks]),
        "steps": _even([block.n for block in blocks]),
        "samples": _even([block.samples for block in blocks]),
    }
    return json.dumps({**columns, "seconds": base64.b64encode(seconds).decode("ascii")})


def unpacked(text: str | None) -> Blocks:
    """Unpack the result of `packed`; empty if the run has no measured block."""
    if not text:
        return Blocks([], [], [], [])
    columns = json.loads(text)
    data = base64.b64decode(columns["seconds"])
    n = len(data) // 8
    step, steps, samples = (_whole(columns[name], n) for name in ("step", "steps", "samples"))
    return Blocks(step, steps, list(struct.unpack(f"<{n}d", data)), samples)


def _even(values: list[int]) -> Any:
    """Return {"from", "by"} if the numbers are evenly spaced, else all of them."""
    by = values[1] - values[0] if len(values) > 1 else 0
    if values and values == _whole({"from": values[0], "by": by}, len(values)):
        return {"from": values[0], "by": by}
    return values


def _whole(values: Any, n: int) -> list[int]:
    if not isinstance(values, dict):
        return values
    first, by = values["from"], values["by"]
    return list(range(first, first + n * by, by)) if by else [first] * n
