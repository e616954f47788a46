"""Checks that need several runs of a study: copied runs, and frameworks that were given different work.

They change rows in place after the cache was written, since a cached row must not depend on other runs.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import Any

from analysis.base.constants import OWN_TRAININGS
from analysis.base.text import count, gpus_text, listed
from analysis.read.run import COMPLETED, INVALID

# What runs must share, besides the global batch, for their frameworks to be compared.
COMPARED = ("model", "dataset", "precision", "scaling", "gpus", "cluster")


def refuse_copies(rows: list[dict[str, Any]]) -> list[str]:
    """Report folders whose name is not the run id of their spec, and invalidate copies of another run of the study.

    A copied folder would otherwise count as a repeat with zero spread.
    """
    problems = []
    here: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        here[row.get("spec_run_id") or row["run_id"]].append(i)
    for run_id, indices in here.items():
        own = [i for i in indices if rows[i]["run_id"] == run_id] or indices[:1]
        for i in indices:
            if rows[i]["run_id"] == run_id:
                continue
            problems.append(f"runs/{rows[i]['run_id']} holds the spec.json of run {run_id}")
            if i not in own:
                rows[i] = {**rows[i], "status": INVALID, "reason": f"a copy of run {run_id}"}
    return problems


def refuse_unequal_batches(rows: list[dict[str, Any]]) -> list[str]:
    """Invalidate completed runs of two frameworks that share no global batch at a number of GPUs.

    They cannot be compared, whatever else they share. If both took part in a sweep over batches, they are compared per
    batch.
    """
    problems = []
    groups: dict[tuple[Any, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, row in enumerate(rows):
        if row["status"] == COMPLETED and row["framework"] not in OWN_TRAININGS:
            groups[tuple(row[name] for name in COMPARED)][row["framework"]].append(i)
    for by_framework in groups.values():
        batches = {name: {rows[i]["global_batch"] for i in indices} for name, indices in by_framework.items()}
        pairs = [pair for pair in combinations(sorted(batches), 2) if not batches[pair[0]] & batches[pair[1]]]
        refused = sorted({name for pair in pairs for name in pair})
        if not refused:
            continue
        given = [f"{name} of {listed(map(count, sorted(batches[name])), 'or')}" for name in refused]
        given[0] = given[0].replace(" of ", " was given a global batch of ", 1)
        indices = [i for name in refused for i in by_framework[name]]
        row = rows[indices[0]]
        reason = f"{listed(given, 'and')} at {gpus_text(row['gpus'], row['device'])}: not the same work"
        for i in indices:
            rows[i] = {**rows[i], "status": INVALID, "reason": reason}
        problems.append(f"{row['model']} on {row['dataset']}: {reason}; its {len(indices)} completed runs are refused")
    return problems
