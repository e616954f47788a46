"""Clocks of the nodes of an attempt: how far each is ahead of that of rank 0's node, by what the ranks do together.

The ranks of a synchronous training end a step together; those of others begin the second block together, after the
exchange that ends the first. A rank that got no further left the rendezvous with the others. Times of two nodes are
subtracted only after correction by this lead, and not at all where it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from analysis.base.text import printable
from analysis.base.values import seconds_of
from analysis.read.damage import CLOCK_SECONDS, CLOCKS_APART
from analysis.read.log.rank import RankLog

# Ranks of one machine, and the signs of one node's clock, do not differ by more than this.
SAME_CLOCK_SECONDS = 60.0
# Parts of the start-up that come after the ranks have met.
_AFTER_RENDEZVOUS = ("build", "facts")


def correct_clocks(
    ranks: Mapping[int, RankLog], exits: Mapping[int, float], synchronous: bool, one_node: bool
) -> dict[int, float]:
    """Put the times of all logs on the clock of rank 0's node, and count as damage where they contradict each other.

    Times of a log whose lead is unknown are removed.

    Args:
        exits: unix seconds of each rank's exit, by the clock of its own node.
        synchronous: whether the ranks end a step together.
        one_node: whether all ranks are on one node.

    Returns:
        Seconds by which the clock of each rank's node is ahead, as far as known; 0 for rank 0's.
    """
    first = min(ranks, default=0)
    one_clock = one_node or len({_machine(log) for log in ranks.values()} - {None}) == 1
    leads = dict.fromkeys({*ranks, *exits} if one_clock else {0}, 0.0)
    if first > 0 and not one_clock:  # the start of the attempt is by the clock of rank 0's node
        for log in ranks.values():
            log.put_on_clock(None)
        return leads
    for number, log in ranks.items():
        if number == first:
            continue
        lead = _lead(log, ranks[first], synchronous)
        if _contradicts(log, ranks[first], lead, synchronous):
            log.damage[CLOCKS_APART] += 1
        if number in leads or (_machine(log) is not None and _machine(log) == _machine(ranks[first])):
            if lead is not None and abs(lead) > SAME_CLOCK_SECONDS:
                log.damage[CLOCKS_APART] += 1
            leads[number] = 0.0
        elif lead is not None:
            # Clocks that a network sets agree better than the ranks do, and what is corrected is named.
            leads[number] = lead if abs(lead) > CLOCK_SECONDS else 0.0
            if abs(lead) > SAME_CLOCK_SECONDS and first in exits and number in exits:
                # The supervisors end together too. If only the log is off, it was not the clock.
                apart = exits[number] - exits[first]
                if abs(apart - lead) > abs(apart) + abs(lead) / 2:
                    log.damage[CLOCKS_APART] += 1
    # Ranks that took no step in common are on the clock of their machine.
    by_machine = {_machine(ranks[number]): lead for number, lead in leads.items() if number in ranks}
    for number, log in ranks.items():
        if number not in leads and (machine := _machine(log)) is not None and machine in by_machine:
            leads[number] = by_machine[machine]
        log.put_on_clock(leads.get(number))
    return leads


def machine_leads(ranks: Mapping[int, RankLog], leads: Mapping[int, float]) -> dict[str, float]:
    """Return the lead of each known machine."""
    return {machine: leads[n] for n, log in ranks.items() if n in leads and (machine := _machine(log)) is not None}


def lead_notes(ranks: Mapping[int, RankLog], leads: Mapping[int, float]) -> list[str]:
    """Return a sentence for each node whose clock was corrected."""
    if not ranks:
        return []
    of = _host(ranks[min(ranks)]) or f"rank {min(ranks)}'s node"
    found: dict[str, float] = {}
    for number, lead in leads.items():
        if number in ranks and lead:
            found.setdefault(_host(ranks[number]) or f"rank {number}'s node", lead)
    return [
        f"the clock of {host} was {abs(lead):,.0f} s {'ahead of' if lead > 0 else 'behind'} that of {of}: corrected "
        "by the steps that both ended together"
        for host, lead in sorted(found.items())
    ]


def _lead(log: RankLog, reference: RankLog, synchronous: bool) -> float | None:
    for own, other in ((_step(log, synchronous), _step(reference, synchronous)), (_met(log), _met(reference))):
        if own is not None and other is not None and own[0] == other[0]:
            return own[1] - other[1]
    return None


def _contradicts(log: RankLog, reference: RankLog, lead: float | None, synchronous: bool) -> bool:
    """Return whether the moments that both ranks share give different leads: a clock was set, or a time is damaged."""
    pairs = [(_met(log), _met(reference)), (_step(log, synchronous), _step(reference, synchronous))]
    pairs.append((_last_step(log), _last_step(reference)))
    found = [own[1] - other[1] for own, other in pairs if own and other and own[0] == other[0]]
    return lead is not None and any(abs(a - b) > SAME_CLOCK_SECONDS for a, b in pairwise(found))


def _step(log: RankLog, synchronous: bool) -> tuple[int, float] | None:
    """Return (step, unix seconds) of the first moment at a step that the ranks share."""
    return log.first_ended if synchronous else log.second_began


def _met(log: RankLog) -> tuple[int, float] | None:
    parts = log.start.get("startup_seconds") if log.start is not None else None
    if log.start_t is None or not isinstance(parts, dict) or "rendezvous" not in parts:
        return None
    return 0, log.start_t - sum(seconds_of(parts, part) or 0.0 for part in _AFTER_RENDEZVOUS)


def _last_step(log: RankLog) -> tuple[int, float] | None:
    return (log.blocks[-1].end, log.last_block_t) if log.blocks and log.last_block_t is not None else None


def _machine(log: RankLog) -> str | None:
    machine = (log.start or {}).get("machine")
    return machine if isinstance(machine, str) else None


def _host(log: RankLog) -> str | None:
    host = (log.start or {}).get("host")
    return printable(host) if isinstance(host, str) else None
