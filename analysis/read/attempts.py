"""The attempts of a run: which belong to the current measurement, which of their steps count, and their durations.

A run that was cut short (by its time limit, a preemption, a failure) resumes in a new attempt from its last checkpoint.
Its training is then a chain of pieces: the last attempt from its checkpoint on, before it the attempt that wrote that
checkpoint, up to that step, and so on back to step 0. Steps done after the checkpoint were lost and repeated; only the
repetition in the chain counts.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.base.numbers import total_if_known
from analysis.base.text import printable
from analysis.base.values import LARGEST_COUNT, seconds_of
from analysis.read.clocks import SAME_CLOCK_SECONDS, correct_clocks, lead_notes, machine_leads
from analysis.read.damage import (
    CLOCK_BACK,
    CLOCK_GAP,
    CLOCK_SECONDS,
    CLOCKS,
    CUT,
    GAP_SECONDS,
    KINDS,
    NO_DOCUMENT,
    Damage,
)
from analysis.read.environment import Environment, read_environment
from analysis.read.files import EXIT_OF_RANK, LOG_OF_RANK
from analysis.read.log.file import json_object, read_log
from analysis.read.log.rank import RankLog
from analysis.read.log.values import Block, Resume
from analysis.read.matching import matched_blocks
from harness.core.events import COMPLETED, LEFT, attempt_dirs
from harness.core.run_files import AGAIN, BEGIN, ENVIRONMENT, REPLACED_RESULT, SLURM_ENERGY, VERIFY


@dataclass(frozen=True)
class Attempt:
    """One attempt as read from its folder. None means unknown unless stated otherwise.

    blocks: blocks that every rank logged exactly once, ordered by first step; seconds of the slowest rank, samples of
    all ranks, excluding updates lost by a parameter server. unmatched: (first step, steps) of all other blocks. begin:
    unix seconds at which its ranks were started. last_sign: unix seconds of the last exit or event of any rank, or
    `begin` if there is none; None also if a file needed for it is unreadable.
    why_ended: the recorded reason. verify: whether it wrote VERIFY.
    slurm_energy: energy from Slurm's accounting; None if not queried. environment: from its env.json. damage: damage to
    its files.
    clock_jumped: a clock involved was set while it ran, or its logs' times contradict each other, so differences
    between its timestamps are unusable. All times are by the clock of rank 0's node; those of nodes whose clock cannot
    be compared are not used. clock_notes: what was corrected. machine_leads: seconds by which a machine's clock is
    ahead.
    code_changed: a sentence, if the code of the user's own training was another one at the start than in the plan.
    """

    number: int
    ranks: Mapping[int, RankLog]
    blocks: tuple[Block, ...]
    unmatched: tuple[tuple[int, int], ...]
    begin: float | None
    last_sign: float | None
    why_ended: str | None
    verify: bool
    slurm_energy: Mapping[str, Any] | None = None
    environment: Environment | None = None
    damage: tuple[Damage, ...] = ()
    clock_jumped: bool = False
    clock_notes: tuple[str, ...] = ()
    machine_leads: Mapping[str, float] = field(default_factory=dict)
    code_changed: str | None = None

    @property
    def resume(self) -> Resume | None:
        """The first one logged by any rank; `analysis.read.columns.validity` checks that all ranks agree."""
        return next((rank.resume for rank in self.ranks.values() if rank.resume), None)

    @property
    def first_step(self) -> int:
        return self.resume.step if self.resume else 0

    @property
    def trained(self) -> bool:
        """True if it reached training; an attempt that ended during start-up changed nothing."""
        return self.resume is not None or bool(self.blocks or self.unmatched)


@dataclass(frozen=True)
class Piece:
    """The part of an attempt that counts. left_out: number of its blocks that did not match across ranks."""

    attempt: Attempt
    blocks: tuple[Block, ...]
    left_out: int


def read_attempts(
    run_dir: Path, timed_by_first: bool = False, synchronous: bool = True, one_node: bool = False
) -> list[Attempt]:
    """Read the attempts of the current measurement that have begun, in order.

    timed_by_first: only rank 0 times the steps, as with a pattern over its output. synchronous: the ranks end a step
    together. one_node: all ranks are on one node.

    A completed earlier attempt and all before it belong to a measurement that was replaced; they are not read. Raises
    UnknownVersion, OSError, and ValueError if a replaced result is invalid.
    """
    found: list[Attempt] = []
    for folder in reversed(attempt_dirs(run_dir)):
        names = sorted(os.listdir(folder))
        result = _replaced_result(folder) if REPLACED_RESULT in names else {}
        if result.get("status") == COMPLETED:
            break
        attempt = _read_attempt(folder, names, result, timed_by_first, synchronous, one_node)
        if attempt is not None:
            found.append(attempt)
    return found[::-1]


def pieces_of(attempts: Sequence[Attempt], completed: bool) -> list[Piece]:
    """Return the chain of pieces that make up the run's training, in order.

    Each attempt names the one whose checkpoint it resumed from; attempts in between are not part of the chain. An
    attempt without a resume event began at step 0. The last attempt of a completed run is always part of the chain.
    """
    pieces: list[Piece] = []
    limit, wanted = math.inf, None
    for attempt in reversed(attempts):
        needed = attempt.number == wanted if wanted is not None else attempt.trained
        if not needed and not (completed and attempt is attempts[-1]):
            continue
        first = attempt.first_step
        # A block that spans the checkpoint's step is not part of the chain either, so that no step counts twice.
        torn = first > 0 or limit < math.inf
        blocks = tuple(b for b in attempt.blocks if first <= b.step and b.end <= limit) if torn else attempt.blocks
        left_out = sum(first <= step < limit for step, _ in attempt.unmatched)
        pieces.append(Piece(attempt, blocks, left_out))
        if first == 0:
            break
        limit, wanted = first, attempt.resume.from_attempt if attempt.resume else None
    return pieces[::-1]


def attempt_columns(attempts: Sequence[Attempt], pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the columns on what the attempts cost: counts of attempts and steps, and seconds; None if unknown."""
    if not attempts:
        return {"attempts": 0}
    counted = [block for piece in pieces for block in piece.blocks]
    return {
        "attempts": len(attempts),
        "continued": len(pieces) > 1,
        "code_changed": any(attempt.code_changed for attempt in attempts),
        # Without the beginning of the chain, its duration is unknown too.
        "useful_seconds": None if is_torn(pieces) else math.fsum([block.seconds for block in counted]),
        "allocated_seconds": total_if_known(allocated(attempt) for attempt in attempts),
        "idle_seconds": total_if_known(_idle(former, latter) for former, latter in pairwise(attempts)),
        "lost_steps": min(lost_steps(attempts, pieces), LARGEST_COUNT),
        "checkpoint_seconds": math.fsum(_checkpoint_seconds(attempt) for attempt in attempts),
    }


def _code_changed(begin: Mapping[str, Any]) -> str | None:
    """Return `Attempt.code_changed`, as a job writes it into begin.json."""
    changed = begin.get("code_changed")
    if not isinstance(changed, dict):
        return None
    planned, found = (printable(str(changed.get(name) or "unknown")) for name in ("planned", "found"))
    return f"the code of the training changed between plan and start (planned: {planned}; found: {found})"


def allocated(attempt: Attempt) -> float | None:
    """Return the seconds from the start of an attempt to its last sign of life."""
    if attempt.begin is None or attempt.last_sign is None:
        return None
    return attempt.last_sign - attempt.begin


def _read_attempt(
    folder: Path,
    names: Sequence[str],
    result: Mapping[str, Any],
    timed_by_first: bool,
    synchronous: bool,
    one_node: bool,
) -> Attempt | None:
    """Read an attempt; None if no rank has begun: it is pending, or was cancelled while pending."""
    logs = {int(match[1]): name for name in names if (match := LOG_OF_RANK.fullmatch(name))}
    documents = {
        name: json_object(folder / name)
        for name in names
        if name in (BEGIN, AGAIN, SLURM_ENERGY) or EXIT_OF_RANK.fullmatch(name)
    }
    exits_of = {int(match[1]): held for name, held in documents.items() if (match := EXIT_OF_RANK.fullmatch(name))}
    exits = list(exits_of.values())
    if not logs and not exits and BEGIN not in documents:
        return None
    ranks = {number: read_log(folder / name) for number, name in sorted(logs.items())}
    begin = seconds_of(documents.get(BEGIN, {}), "t")
    timing = {number: rank for number, rank in ranks.items() if number == 0} if timed_by_first else ranks
    blocks, unmatched = matched_blocks(timing)
    ends = {number: seconds_of(exit_, "t") for number, exit_ in exits_of.items()}
    own_clock = {number: rank.last_t for number, rank in ranks.items()}
    exited = {number: t for number, t in ends.items() if t is not None}
    early = [n for n, t in exited.items() if (last := own_clock.get(n)) is not None and t < last - CLOCK_SECONDS]
    leads = correct_clocks(ranks, exited, synchronous, one_node)
    corrected = [t - leads[number] for number, t in exited.items() if number in leads]
    known = [t for t in (*(rank.last_t for rank in ranks.values()), *corrected) if t is not None]
    # Without a sign of which the clock is known, the attempt may have gone on.
    silent = None in ends.values() or (bool(exited) and not known)
    last_sign = None if silent else max([*known, *filter(None, [begin])], default=None)
    damage = [
        Damage(f"{folder.name}/{logs[number]}", kind, rank.damage[kind])
        for number, rank in ranks.items()
        for kind in KINDS
        if rank.damage[kind]
    ]
    damage += [Damage(f"{folder.name}/{name}", NO_DOCUMENT, 1) for name, held in documents.items() if not held]
    environment = read_environment(folder / ENVIRONMENT) if ENVIRONMENT in names else None
    if ENVIRONMENT in names and environment is None:
        damage.append(Damage(f"{folder.name}/{ENVIRONMENT}", NO_DOCUMENT, 1))
    damage += [Damage(f"{folder.name}/{name}", CUT, 1) for name in _cut(exits, ranks)]
    damage += [Damage(f"{folder.name}/exit.rank{number}.json", CLOCK_BACK, 1) for number in early]
    if jumped := _jump(begin, last_sign, ranks, blocks):
        damage.append(Damage(f"{folder.name}/{BEGIN}", jumped, 1))
    jumps = any(each.kind in CLOCKS for each in damage)
    return Attempt(
        number=min(int(folder.name.removeprefix("attempt-")), LARGEST_COUNT),
        ranks=ranks,
        blocks=blocks,
        unmatched=unmatched,
        begin=begin,
        code_changed=_code_changed(documents.get(BEGIN, {})),
        last_sign=None if jumps else last_sign,
        why_ended=_why_ended(documents.get(AGAIN, {}), result, exits, ranks),
        verify=VERIFY in names,
        slurm_energy=documents.get(SLURM_ENERGY),
        environment=environment,
        damage=tuple(damage),
        clock_jumped=jumps,
        clock_notes=() if jumps else tuple(lead_notes(ranks, leads)),
        machine_leads=machine_leads(ranks, leads),
    )


def _cut(exits: Iterable[Mapping[str, Any]], ranks: Mapping[int, RankLog]) -> list[str]:
    """Return the logs that are not as long as when their rank ended, if nothing else is known to be wrong with them."""
    found = []
    for exit_ in exits:
        sizes = exit_.get("log_bytes")
        for number, size in sizes.items() if isinstance(sizes, dict) else ():
            log = ranks.get(int(number)) if number.isascii() and number.isdigit() else None
            if log is None or (log.bytes != size and not log.damage):
                found.append(f"events.rank{printable(number)}.jsonl")
    return found


def _jump(
    begin: float | None, last_sign: float | None, ranks: Mapping[int, RankLog], blocks: Sequence[Block]
) -> str | None:
    """Return the kind of clock damage between the start of an attempt, its logs and its ranks' exits, if any."""
    if begin is None or last_sign is None or not ranks:
        return None
    first = min((rank.first_t for rank in ranks.values() if rank.first_t is not None), default=begin)
    last = max((rank.last_t for rank in ranks.values() if rank.last_t is not None), default=last_sign)
    # A log of rank 0's node that is older than its start.
    if first < begin - SAME_CLOCK_SECONDS:
        return CLOCK_BACK
    if first - begin > GAP_SECONDS or last_sign - last > GAP_SECONDS:
        return CLOCK_GAP
    # An attempt cannot be shorter than the blocks timed in it.
    if last_sign - begin < 0.95 * math.fsum([block.seconds for block in blocks]) - CLOCK_SECONDS:
        return CLOCK_BACK
    return None


def _why_ended(
    again: Mapping[str, Any],
    result: Mapping[str, Any],
    exits: Iterable[Mapping[str, Any]],
    ranks: Mapping[int, RankLog],
) -> str | None:
    if again:
        by, reason = printable(str(again.get("by"))), printable(str(again.get("reason")))
        return reason if reason.startswith(by) else f"{by}: {reason}"
    if result.get("reason"):
        return printable(str(result["reason"]))
    left_at = next((rank.left_at for rank in ranks.values() if rank.left_at is not None), None)
    if left_at is not None:
        return f"left at step {left_at:,}, saved, as it was told to"
    if any(exit_.get("code") == LEFT for exit_ in exits):
        return "left, saved, as it was told to"
    return next((printable(str(exit_["reason"])) for exit_ in exits if exit_.get("reason")), None)


def _idle(former: Attempt, latter: Attempt) -> float | None:
    """Return the seconds between two attempts, mostly spent in the queue; None if clocks of two nodes contradict it."""
    seconds = seconds_between(former, latter)
    return None if seconds is None or seconds < -CLOCK_SECONDS else max(0.0, seconds)


def seconds_between(former: Attempt, latter: Attempt) -> float | None:
    """Return the seconds from the last sign of an attempt to the start of the next; None if unknown.

    Corrected by a machine that both ran on; without one, the clocks of two nodes are compared as they are.
    """
    if former.last_sign is None or latter.begin is None:
        return None
    shared = former.machine_leads.keys() & latter.machine_leads.keys()
    lead = next((latter.machine_leads[m] - former.machine_leads[m] for m in sorted(shared)), 0.0)
    return latter.begin + lead - former.last_sign


def lost_steps(attempts: Sequence[Attempt], pieces: Sequence[Piece]) -> int:
    """Return the logged steps outside the chain: a lower bound, since the last block may not have been logged."""
    counted = {piece.attempt.number: piece.blocks for piece in pieces}
    torn = [(a.blocks, part) for a in attempts if (part := counted.get(a.number, ())) is not a.blocks]
    done = sum(sum(b.n for b in blocks) - sum(b.n for b in part) for blocks, part in torn)
    limits = {piece.attempt.number: after.attempt.first_step for piece, after in pairwise(pieces)}
    if pieces:
        limits[pieces[-1].attempt.number] = LARGEST_COUNT
    return done + sum(n for a in attempts for step, n in a.unmatched if step >= limits.get(a.number, 0))


def _checkpoint_seconds(attempt: Attempt) -> float:
    """Return the seconds of all its checkpoints, each on its slowest rank."""
    slowest: dict[int, float] = defaultdict(float)
    for rank in attempt.ranks.values():
        for step, seconds in rank.checkpoints.items():
            slowest[step] = max(slowest[step], seconds)
    return math.fsum(slowest.values())


def is_torn(pieces: Sequence[Piece]) -> bool:
    """Return whether the attempt that wrote the first piece's checkpoint is missing."""
    return bool(pieces) and pieces[0].attempt.first_step > 0


def _replaced_result(folder: Path) -> Mapping[str, Any]:
    path = folder / REPLACED_RESULT
    document = json_object(path)
    # If it passed for a failed attempt, a replaced measurement would become part of the current one.
    if "status" not in document:
        raise ValueError(f"{path} is not a result")
    return document
