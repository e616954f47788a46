"""Matches the blocks of an attempt across ranks; a step of synchronous training ends with its slowest rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import ge

from msgspec.structs import replace

from analysis.base.numbers import total_if_known
from analysis.read.damage import REPEATED
from analysis.read.log.rank import RankLog
from analysis.read.log.values import BLOCK_PARTS, Block, Return
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
            (joined,) = _joined([[block] for _, block in parts], [number in metering for number in everyone])
            found.append(replace(joined, samples=max(0, joined.samples - lost[step])))
        else:
            unmatched.append((step, max(block.n for _, block in parts)))
    return tuple(found), tuple(unmatched)


def _alike(ranks: Mapping[int, RankLog], metering: set[int]) -> tuple[Block, ...] | None:
    """Return the blocks if all ranks logged the same ones in step order, the usual case; else None."""
    logs = [rank.blocks for rank in ranks.values()]
    if not logs or len({len(log) for log in logs}) > 1:
        return None
    steps = [block.step for block in logs[0]]
    if any(map(ge, steps, steps[1:])):
        return None
    metered = [number in metering for number in ranks]
    if len(logs) == 1:
        same = metered[0] or all(block.joules is None for block in logs[0])
        return tuple(logs[0] if same else (replace(block, joules=None) for block in logs[0]))
    kinds = [[(block.phase, block.step, block.n) for block in log] for log in logs]
    if any(kind != kinds[0] for kind in kinds):
        return None
    return tuple(_joined(logs, metered))


def _joined(logs: Sequence[Sequence[Block]], metered: Sequence[bool]) -> Iterator[Block]:
    """Merge the ranks' parts of each block. metered: which ranks meter a device that no other rank meters."""
    first = logs[0]
    parts = [[[getattr(block, name) for block in log] for log in logs] for name in BLOCK_PARTS]
    metering = [[block.joules for block in log] for log, has in zip(logs, metered, strict=True) if has]
    return map(
        Block,
        [block.phase for block in first],
        [block.step for block in first],
        [block.n for block in first],
        _slowest([[block.seconds for block in log] for log in logs], parts[-1]),
        map(sum, zip(*([block.samples for block in log] for log in logs), strict=True)),
        map(total_if_known, zip(*metering, strict=True)) if metering else repeat(None),
        *map(_largest, parts),
    )


def _slowest(seconds: Sequence[Sequence[float]], left_out: Sequence[Sequence[float | None]]) -> Iterable[float]:
    """Return the seconds of each block on its slowest rank. Both by rank; left_out: what the seconds leave out."""
    if not any(map(any, left_out)):
        return map(max, zip(*seconds, strict=True))
    known = [[part or 0.0 for part in own] for own in left_out]
    parts = zip(zip(*seconds, strict=True), zip(*known, strict=True), strict=True)
    return (slowest_seconds([*zip(*part, strict=True)]) for part in parts)


def _largest(parts: Sequence[Sequence[float | None]]) -> Iterable[float | None]:
    """Return the maximum over the ranks for each block; None if one is unknown. parts: by rank."""
    if any(own.count(None) == len(own) for own in parts):
        return repeat(None)
    return (None if None in part else max(part) for part in zip(*parts, strict=True))


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
