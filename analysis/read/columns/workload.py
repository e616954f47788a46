"""Columns of a training of the user's own: how its steps were seen, what it counts, and its waiting for data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from analysis.base.text import duration, printable
from analysis.read.log.rank import RankLog
from analysis.read.log.values import HOOKS, MEASURE, PATTERN, PROBE, SCRIPT_ENDED, Block, Seen
from harness.core.spec import RunSpec
from harness.core.workload.spec import WorkloadSpec

METHODS = {
    HOOKS: "hooks in its process",
    PROBE: "a probe in its code",
    PATTERN: "a pattern over its output",
}


def processes_of(spec: RunSpec, ranks: Mapping[int, RankLog]) -> int:
    """Return the number of processes that log: one per GPU, except that a training of the user's own may have one per
    node, and may start others itself."""
    workload, nodes = spec.workload, spec.placement.nodes
    per_node = workload is not None and workload.one_process_per_node
    return nodes if per_node and all(number < nodes for number in ranks) else spec.gpus


def counted(workload: WorkloadSpec | None, blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks with the samples of all ranks. Those of a user's training follow from its spec, since a rank
    cannot tell what the others train on."""
    if workload is None:
        return list(blocks)
    return [replace(block, samples=block.n * workload.samples_per_step) for block in blocks]


def workload_columns(
    workload: WorkloadSpec | None, blocks: Sequence[Block], ranks: Mapping[int, RankLog]
) -> dict[str, Any]:
    """Return the columns; empty for networks of the catalogue. blocks: all that count, with their samples.

    method: HOOKS, PROBE or PATTERN. unit: what samples_per_step and all samples count. data_waits: JSON, seconds per
    step of each measured block in which the rank that waited longest waited for its DataLoader; None if unknown.
    left_out_seconds: of evaluation, checkpoints and epoch changes between all counted steps.
    """
    if workload is None:
        return {}
    seen = _seen(ranks)
    measured = [block for block in blocks if block.phase == MEASURE]
    waits = [block.data_seconds / block.n for block in measured if block.data_seconds is not None]
    left_out = [block.left_out_seconds for block in blocks if block.left_out_seconds is not None]
    return {
        "method": seen.method if seen else PATTERN if workload.pattern else None,
        "unit": printable(workload.unit),
        "samples_per_step": float(workload.samples_per_step),
        "data_waits": json.dumps(waits) if waits and len(waits) == len(measured) else None,
        "left_out_seconds": math.fsum(left_out) if left_out else None,
    }


def workload_notes(
    workload: WorkloadSpec | None, columns: Mapping[str, Any], ranks: Mapping[int, RankLog]
) -> list[str]:
    """Return notes on how a user's training was measured."""
    if workload is None:
        return []
    notes = []
    if (method := columns.get("method")) is not None:
        seen = _seen(ranks)
        named = f"'{seen.step_of}'" if seen and method == PATTERN else f"steps of {seen.step_of}" if seen else ""
        steps = f", {named}" if seen and seen.step_of else ""
        micro = f" of {seen.accumulation} micro-batches each" if seen and (seen.accumulation or 1) > 1 else ""
        notes.append(f"measured by {METHODS[method]}{steps}{micro}")
    if ranks and all(rank.world_size is None for rank in ranks.values()):
        notes.append("world size not verified: its ranks did not say how many they are")
    outcome = next((rank.outcome for rank in ranks.values() if rank.outcome), None)
    if outcome is not None and outcome.stopped == SCRIPT_ENDED:
        notes.append("the script ended before all steps were measured")
    if left_out := columns.get("left_out_seconds"):
        notes.append(f"{duration(left_out)} of evaluation, checkpoints and epoch changes are in no step")
    return notes


def _seen(ranks: Mapping[int, RankLog]) -> Seen | None:
    return next((rank.seen for rank in ranks.values() if rank.seen), None)
