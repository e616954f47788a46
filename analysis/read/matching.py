"""Matches the blocks of an attempt across ranks; a step of synchronous training ends with its slowest rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from analysis.base.numbers import total_if_known
from analysis.read.damage import REPEATED
from analysis.read.log.rank import RankLog
from analysis.read.log.values import Block, Return
from harness.core.measuring.slowest_rank import slowest_seconds


def matched_blocks(ranks: Mapping[int, RankLog]) -> tuple[tuple[Block, ...], tuple[tuple[int, int], ...]]:
    """Return the blocks that every rank logged exactly once, and (first step, steps) of all others.

    If a rank logged a step twice in different places, neither is used, since it is unknown which is right.
    """
    for rank in ranks.values():
        steps = {block.step for block in rank.blocks}
        if len(steps) < len(rank.blocks):
            rank.damage[REPEATED] += len(rank.blocks) - len(steps)
    lost: dict[int, int] = defaultdict(int)
    for back in returns_of(ranks):
        lost[back.step] += back.lost_samples
    metering = _metering(ranks)
    if not lost and (matched := _alike(ranks, metering)) is not None:
        return matched, ()
    by_step: dict[int, list[tuple[int, Block]]] = defaultdict(list)
    for number, rank in ranks.items():
        for block in rank.blocks:
            by_step[block.step].append((number, block))
    found, unmatched, everyone = [], [], list(ranks)
    for step, parts in sorted(by_step.items()):
        alike = len({(block.phase, block.n) for _, block in parts}) == 1
        if alike and [number for number, _ in parts] == everyone:
            joined = _joined([block for _, block in parts], [number in metering for number in everyone])
            found.append(joined._replace(samples=max(0, joined.samples - lost[step])))
        else:
            unmatched.append((step, max(block.n for _, block in parts)))
    return tuple(found), tuple(unmatched)


def _alike(ranks: Mapping[int, RankLog], metering: set[int]) -> tuple[Block, ...] | None:
    """Return the blocks if all ranks logged the same ones in step order, the usual case; else None."""
    logs = [rank.blocks for rank in ranks.values()]
    if not logs or len({len(log) for log in logs}) > 1:
        return None
    if any(a.step >= b.step for a, b in pairwise(logs[0])):
        return None
    metered = [number in metering for number in ranks]
    if len(logs) == 1:
        same = metered[0] or all(block.joules is None for block in logs[0])
        return tuple(logs[0] if same else (block._replace(joules=None) for block in logs[0]))
    rows = list(zip(*logs, strict=True))
    if any(len({(block.phase, block.step, block.n) for block in row}) > 1 for row in rows):
        return None
    return tuple(_joined(row, metered) for row in rows)


def _joined(parts: Sequence[Block], metered: Sequence[bool]) -> Block:
    """Merge the ranks' parts of a block. metered: which ranks meter a device that no other rank meters."""
    seconds = slowest_seconds([(block.seconds, block.left_out_seconds or 0.0) for block in parts])
    samples = sum(block.samples for block in parts)
    metering = [block.joules for block, has in zip(parts, metered, strict=True) if has]
    return parts[0]._replace(
        seconds=seconds,
        samples=samples,
        joules=total_if_known(metering) if metering else None,
        issue_seconds=_largest(block.issue_seconds for block in parts),
        first_issue_seconds=_largest(block.first_issue_seconds for block in parts),
        data_seconds=_largest(block.data_seconds for block in parts),
        left_out_seconds=_largest(block.left_out_seconds for block in parts),
    )


def _largest(parts: Iterable[float | None]) -> float | None:
    """Return the maximum; None if one is unknown."""
    largest = 0.0
    for part in parts:
        if part is None:
            return None
        largest = max(largest, part)
    return largest


def _metering(ranks: Mapping[int, RankLog]) -> set[int]:
    """Return ranks whose meters together cover each device once; empty if a device is not metered."""
    first: dict[tuple[str, str], int] = {}
    for number, rank in ranks.items():
        start = rank.start or {}
        if not start.get("energy_of"):
            return set()
        first.setdefault((str(start.get("machine")), str(start["energy_of"])), number)
    return set(first.values())


def returns_of(ranks: Mapping[int, RankLog]) -> list[Return]:
    """Collect the returns of parameter servers, ordered by step."""
    return sorted(back for rank in ranks.values() for back in rank.returns)
