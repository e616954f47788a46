"""Steps compared with measured ceilings, calculated by hand: ResNet-44, 128 images of 32x32 per rank, 0.1 s a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from seen import Seen, words
from study_builder import Logs, StudyBuilder, spec_of

from analysis.read.study import read_study
from analysis.report.findings import findings_of

# Forward operations of ResNet-44 for one CIFAR-10 image, counted by hand independently of models/catalog.py: the stem
# 2*3*16*9*32^2, then 7 blocks of two convolutions per stage; from the second stage on, the first one halves the side.
CONVOLUTION = 2 * 16 * 16 * 9 * 32**2
FORWARD = 2 * 3 * 16 * 9 * 32**2 + 14 * CONVOLUTION + 2 * (13 * CONVOLUTION + CONVOLUTION // 2) + 2 * 64 * 10
FLOPS = 3 * 128 * FORWARD


def told(run_dir: Path, rank: int, flops: float | None, moved: float | None, reason: str | None = None) -> None:
    event = {"v": 1, "t": 1e9, "rank": rank, "ev": "ceiling", "precision": "fp32", "flops_per_second": flops}
    rest = {"side": 1024, "bytes_per_second": moved, "bytes": 2**26, "seconds": 0.5, "reason": reason}
    with open(run_dir / "attempt-1" / f"events.rank{rank}.jsonl", "a") as log:
        log.write(json.dumps({**event, **rest}) + "\n")


def row_of(study: StudyBuilder) -> dict[str, Any]:
    (row,) = findings_of(read_study(study.folder)).roofline
    return row


def test_a_step_bound_by_its_operations(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(2), Logs(block_seconds=[1.0] * 4, no_sync_seconds=0.08))
    told(run_dir, 0, flops=2e12, moved=1e15)
    told(run_dir, 1, flops=1e12, moved=2e15)
    row = row_of(study)
    assert row["flops_per_step"] == FLOPS
    # Of the slower rank, since a step waits for it.
    assert (row["bound"], row["limit_seconds"]) == ("compute", pytest.approx(FLOPS / 1e12))
    assert row["of_limit"] == pytest.approx(FLOPS / 1e12 / 0.1)
    assert row["alone_of_limit"] == pytest.approx(FLOPS / 1e12 / 0.08)


def test_a_step_bound_by_its_bytes_and_what_the_report_says(study: StudyBuilder) -> None:
    told(study.add(spec_of(1), Logs(block_seconds=[1.0] * 4)), 0, flops=1e15, moved=100e9)
    row = row_of(study)
    assert (row["bound"], row["ceiling_basis"], row["bytes_basis"]) == ("memory", "measured", "estimated")
    assert row["limit_seconds"] == pytest.approx(row["bytes_per_step"] / 100e9)
    # Weights, gradients and momentum alone: 8 passes over 658,586 numbers; activations come on top.
    assert row["bytes_per_step"] > 8 * 4 * 658_586
    html = words(Seen(study).html)
    assert "How far from what the device gives" in html
    assert '100 GB/s <span class="mark">measured</span>' in html


@pytest.mark.parametrize(
    ("strategy", "flops", "reason", "said"),
    [
        ("allreduce", None, "OutOfMemoryError: full", "OutOfMemoryError: full"),
        ("zero1", 1e12, None, "divides the network"),
    ],
)
def test_unknown_values_have_a_reason(
    study: StudyBuilder, strategy: str, flops: float | None, reason: str | None, said: str
) -> None:
    told(study.add(spec_of(1, strategy=strategy), Logs()), 0, flops, flops, reason)
    row = row_of(study)
    assert said in row["reason"]
    assert "limit_seconds" not in row


def test_older_logs_have_no_roofline(study: StudyBuilder) -> None:
    study.completed(1)
    assert findings_of(read_study(study.folder)).roofline == []
