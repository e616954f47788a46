"""Traces with something in their way: real files and folders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.torch
def test_a_trace_that_cannot_be_as_asked_for_fails_nothing_and_says_why(
    in_torch: Callable[..., Any], tmp_path: Path
) -> None:
    plain, in_the_way, no_place = in_torch("traces", str(tmp_path))
    file = "trace.rank0.json.gz"
    assert (plain["file"], plain["profiler"], plain["reason"]) == (file, "torch.profiler", None)
    # Only the harness's own ranges.
    assert (in_the_way["file"], in_the_way["profiler"]) == (file, None)
    assert "the profiler of pytorch could not start" in in_the_way["reason"]
    with gzip.open(tmp_path / "in_the_way" / file) as written:
        events = json.load(written)["traceEvents"]
    timed = {event["name"]: event["dur"] for event in events if event["ph"] == "X"}
    of_steps = {"step", "data", "to_device", "train", "forward", "backward", "optimizer"}
    assert set(timed) == {"traced steps", *of_steps, "fence"}
    assert timed["traced steps"] >= timed["step"] + timed["fence"]
    assert timed["step"] >= timed["train"] >= timed["forward"] + timed["backward"] + timed["optimizer"] > 0
    assert (no_place["file"], no_place["profiler"]) == (None, None)
    assert "torch.profiler could not end" in no_place["reason"]
    assert "no trace could be written" in no_place["reason"]
