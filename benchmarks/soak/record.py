"""The figures of a soak: as text, and as a section of RESULTS.md."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from typing import Any

from benchmarks.common import Row, counted_share
from benchmarks.soak.journal import LOST, TWICE, WEIGHTS, WRONG

NAME = "soak"
TARGETS = {
    LOST: "runs lost",
    TWICE: "runs run twice",
    WRONG: "wrongly reported",
    WEIGHTS: "runs whose weights differ from the undisturbed study's",
}


def rows(document: Mapping[str, Any]) -> list[Row]:
    faults: Mapping[str, Mapping[str, int]] = document["faults"]
    made, survived = (sum(each[key] for each in faults.values()) for key in ("made", "survived"))
    table = [counted_share("faults survived, of those injected", survived, made)]
    table += [counted_share(f"… {kind}", each["survived"], each["made"]) for kind, each in faults.items()]
    table.append(counted_share("runs completed", document["completed"], document["runs"]))
    table.append(
        counted_share("… that had failed before, with the fault as the reason", document["failed"], document["runs"])
    )
    for what, name in TARGETS.items():
        count = sum(finding["what"] == what for finding in document["findings"])
        table.append(Row(name, "runs" if what != WRONG else "reports", [float(count)], target="≤ 0 runs"))
    return table


def about(document: Mapping[str, Any]) -> str:
    """How to read the table: what was run, for how long, and where."""
    studies = document["studies"]
    text = (
        f"On a virtual Slurm cluster of four nodes on this machine, not on a real one. Faults for "
        f"{document['minutes']:.0f} minutes (seed {document['seed']}), {document['seconds'] / 60:.0f} with the "
        f"undisturbed studies and the rest of the last ones. {document['rounds']} studies of {studies['single']} "
        f"one-node runs (framework=emulated) or {studies['pair']} two-node runs (PyTorch): {document['attempts']} "
        f"attempts of {document['runs']} runs, {document['commands']} starts of the commands, {document['statuses']} "
        "calls of `harness status`. A fault is survived if none of what the last four rows count is charged to it."
    )
    return "\n".join(textwrap.wrap(f"{text} {document.get('remark', '')}".strip(), 120))


def record(document: Mapping[str, Any]) -> None:
    """Put the section into RESULTS.md."""
    from benchmarks.__main__ import RESULTS, section, with_section

    text = section(NAME, document["code"], document["load"], rows(document), about(document))
    RESULTS.write_text(with_section(RESULTS.read_text(encoding="utf-8"), NAME, text), encoding="utf-8")


def summary(document: Mapping[str, Any]) -> str:
    lines = [f"{row.what}: {row.cells()[1]}" for row in rows(document)]
    found = (f"{finding['what']}: {finding['subject']}: {finding['text']}" for finding in document["findings"])
    lines += dict.fromkeys(found)
    return os.linesep.join(lines)
