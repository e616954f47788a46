"""Columns on how the ranks measured: the first step, why the steps ended, and the rounds of the probes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.read.log.rank import RankLog
from analysis.read.log.values import FIRST, SCRIPT_ENDED, Outcome, Probing
from harness.core.measuring.precision import mean_error

# In the order of a round (docs/method.md).
PROBES = ("full", "cached_batch", "one_rank", "no_sync", "allreduce")


def protocol_columns(ranks: Mapping[int, RankLog], own_steps: Sequence[float] = ()) -> dict[str, Any]:
    """Return the columns of one attempt's logs. first_block_seconds: its first step, on the slowest rank.

    own_steps: seconds per step of the measured blocks of a training of the user's own, whose probe does not know the
    half-width.
    """
    columns: dict[str, Any] = {}
    firsts = [[block.seconds for block in rank.blocks if block.phase == FIRST] for rank in ranks.values()]
    if firsts and all(firsts):
        columns["first_block_seconds"] = max(seconds[0] for seconds in firsts)
    outcome, probing = _said(ranks)
    if outcome is not None:
        columns |= {
            "stopped": outcome.stopped,
            "relative_half_width": _half_width(outcome, own_steps),
            "precision_asked": outcome.precision,
            "stationary": outcome.stationary,
            "warmup_steps": outcome.warmup_steps,
        }
    if probing is not None:
        columns |= {
            "probe_rounds": probing.rounds,
            "probe_share": probing.share,
            "probes_skipped": probing.skipped,
        }
    return columns


def protocol_notes(ranks: Mapping[int, RankLog], own_steps: Sequence[float] = ()) -> list[str]:
    """Return notes on how the run was measured; empty if everything went as requested. own_steps: as above."""
    notes = []
    outcome, probing = _said(ranks)
    if outcome is not None:
        half_width = _half_width(outcome, own_steps)
        width = "not known" if half_width is None else f"{100 * half_width:.1f} %"
        if outcome.precision is not None:
            asked = f"{100 * outcome.precision:g} %"
            if outcome.stopped == "precision":
                notes.append(f"stopped at a half-width of {width} of the step time, {asked} was asked for")
            else:
                end = "at the end of the script" if outcome.stopped == SCRIPT_ENDED else "at the limit of steps"
                notes.append(f"stopped {end}: half-width {width}, {asked} was asked for")
        if outcome.stationary is False:
            notes.append("not stationary: the step time had not come to rest when the warm-up reached its limit")
    if probing is not None and probing.skipped:
        notes.append(f"{'probes' if probing.rounds else 'no probes'}: {probing.skipped}")
    return notes


def _half_width(outcome: Outcome, own_steps: Sequence[float]) -> float | None:
    if outcome.relative_half_width is not None:
        return outcome.relative_half_width
    error = mean_error(own_steps)
    return None if error is None else error.half_width


def probe_columns(ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    """Return seconds per step or per message, for probes that every rank logged.

    probes: JSON {probe: {"slowest": [...], "mean": [...]}}, maximum and mean over the ranks for each round that all
    ranks logged; allreduce also has "bytes". Other columns: the slowest rank over all rounds together.
    """
    columns: dict[str, Any] = {}
    messages, rounds = [], {}
    kinds = set().union(*(rank.probes for rank in ranks.values()))
    for probe, n_bytes in sorted(kinds, key=lambda kind: (kind[0], kind[1] or 0)):
        logged = [rank.probes[probe, n_bytes] for rank in ranks.values() if (probe, n_bytes) in rank.probes]
        if len(logged) < len(ranks):
            continue
        if probe in PROBES:
            common = sorted(set(logged[0]).intersection(*logged[1:]))
            steps = [[own[number][1] / own[number][0] for own in logged] for number in common]
            # Older logs may have several message sizes; the last, largest one stays.
            rounds[probe] = {
                "slowest": [max(step) for step in steps],
                "mean": [sum(step) / len(step) for step in steps],
                **({"bytes": n_bytes} if probe == "allreduce" else {}),
            }
        parts = [own.values() for own in logged]
        slowest = max(sum(seconds for _, seconds in part) / sum(n for n, _ in part) for part in parts)
        if probe == "allreduce":
            messages.append({"bytes": n_bytes, "seconds": slowest})
        elif probe in ("cached_batch", "no_sync"):
            columns[f"{probe}_seconds"] = slowest
    if messages:
        columns["allreduce"] = json.dumps(messages)
    if rounds:
        columns["probes"] = json.dumps({probe: rounds[probe] for probe in PROBES if probe in rounds})
    return columns


def _said(ranks: Mapping[int, RankLog]) -> tuple[Outcome | None, Probing | None]:
    """Return what all ranks log alike, from the first rank that logged it."""
    outcome = next((rank.outcome for rank in ranks.values() if rank.outcome), None)
    return outcome, next((rank.probing for rank in ranks.values() if rank.probing), None)
