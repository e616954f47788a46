"""Runs all benchmarks, or those named after `python -m benchmarks`, and writes their sections of RESULTS.md.

`python -m benchmarks verdicts` runs nothing: it derives the verdicts of all sections from their recorded figures.

`python -m benchmarks gpu_check` checks a GPU machine, `python -m benchmarks soak` provokes faults for an hour; both
have their own options (docs/gpu.md, CONTRIBUTING.md).
"""

from __future__ import annotations

import datetime
import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence

from benchmarks.common import EXACT, FEWEST, ROOT, Limits, Row, machine, verdict
from harness.plan.machine import code_version

NAMES = (
    "startup",
    "planning",
    "submission",
    "job_array",
    "worker",
    "frameworks",
    "ddp",
    "protocol",
    "recording",
    "probe",
    "report",
    "prediction",
    "simulation",
)
# Takes an hour; its section follows the others.
SOAK = "soak"
# Checks a GPU machine; its findings are the last section of RESULTS.md.
GPU_CHECK = "gpu_check"
# Programs of their own, which run only when they are named.
PROGRAMS = (SOAK, GPU_CHECK)
RESULTS = ROOT / "benchmarks" / "RESULTS.md"

# Derives verdicts again.
VERDICTS = "verdicts"

HEADER = """# What this program itself costs

Written by `make bench`, and by `python -m benchmarks <name>` one section at a time. Figures are medians (smallest to
largest of n), or counts. Ours and the peer ran alternately; the ratio is the median over the pairs of ours to the
peer's, unless the section says otherwise. The interval is that of the ratio, or of our figure if there is none: at
95 %, of a median by the sign test (from six pairs on), of a share by Wilson's score. A target is `met` if the whole
interval is within it, `missed` if none of it is, and otherwise `undecided`. How each is measured is said at the head of
its file in this folder.
"""

COLUMNS = ("what", "ours", "peer", "ratio", "95 %", "target", "verdict", "n")
SECTION = """
## {name}

{date}, code {code}. Machine: {machine}; load {load:.1f} before.
{about}
{table}"""
# Our figure or the peer's: median, smallest and largest, unit.
FIGURES = re.compile(r"(\S+)(?: \((\S+) to (\S+)\))? (\S+)")


def main(chosen: list[str]) -> int:
    if chosen and chosen[0] in PROGRAMS:
        return importlib.import_module(f"benchmarks.{chosen[0]}.command").main(chosen[1:])
    if chosen == [VERDICTS]:
        RESULTS.write_text(with_verdicts(RESULTS.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    unknown = set(chosen) - set(NAMES)
    if unknown:
        print(
            f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join((*NAMES, VERDICTS, *PROGRAMS))}",
            file=sys.stderr,
        )
        return 2
    # Before writing the first section, since RESULTS.md is part of the checkout.
    code = code_version(ROOT)
    for name in chosen or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        load = os.getloadavg()[0]
        module = importlib.import_module(f"benchmarks.{name}")
        text = section(name, code, load, module.rows(), getattr(module, "ABOUT", ""))
        print(text)
        # Written one by one, so that earlier results survive a later failure.
        RESULTS.write_text(with_section(RESULTS.read_text(encoding="utf-8"), name, text), encoding="utf-8")
    return 0


def section(name: str, code: str, load: float, rows: list[Row], about: str = "") -> str:
    """Format a section. load: the machine's load average when the benchmark started. about: how to read its table."""
    facts = {"date": datetime.date.today(), "code": code, "machine": machine(), "load": load}
    return SECTION.format(name=name, **facts, about=f"{about}\n" if about else "", table=_table(map(Row.cells, rows)))


def with_verdicts(results: str) -> str:
    """Derive the verdicts in RESULTS.md from the figures that it records; sections of GPU machines keep theirs."""
    sections = re.split(r"(?m)^(?=## )", results)[1:]
    return HEADER + "".join("\n" + _with_verdicts(text).rstrip() + "\n" for text in sections)


def _with_verdicts(text: str) -> str:
    head, _, table = text.partition("| what |")
    if not table or text.split()[1] == GPU_CHECK:
        return text
    columns, _, *rows = [_split(line) for line in f"| what |{table}".splitlines() if line.startswith("|")]
    return head + _table([_judged(dict(zip(columns, row, strict=True))) for row in rows])


def _judged(row: dict[str, str]) -> list[str]:
    """The cells of a recorded row. The range of six samples or more holds the interval of their median; fewer than six
    have none."""
    limits: dict[str, Limits] = {}
    ends = re.fullmatch(r"(\S+) to (\S+)", row.setdefault("95 %", "–"))
    limits["median" if row["ratio"] == "–" else "ratio"] = (float(ends[1]), float(ends[2])) if ends else None
    ours, peer = (FIGURES.match(row[name]) for name in ("ours", "peer"))
    if ours is not None and int(row["n"]) >= FEWEST and not limits.get("median"):
        limits["median"] = limits["mean"] = (float(ours[2]), float(ours[3]))
    if mean := re.search(r"mean \S+ % \((\S+) to (\S+) %\)", row["what"]):
        limits["mean"] = (float(mean[1]), float(mean[2]))
    if ours is not None and ours[4] in EXACT:
        limits["median"] = (float(ours[1]), float(ours[1]))
    if ours is not None and int(row["n"]) > 1:
        largest = float(ours[3] or ours[1])  # no range: all are equal
        limits["largest"] = (largest, largest)
        if peer is not None:
            excess = largest - float(peer[3] or peer[1])
            limits["excess"] = (excess, excess)
    row["verdict"] = verdict(row["target"], limits)
    return [re.sub(r"^(\S+) \(\1 to \1\)", r"\1", row[column]) for column in COLUMNS]


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = (COLUMNS, ["---"] * len(COLUMNS), *rows)
    return "".join("|---" * len(line) + "|\n" if line[0] == "---" else f"| {' | '.join(line)} |\n" for line in lines)


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def with_section(results: str, name: str, text: str) -> str:
    """Insert or replace a section in RESULTS.md, in the order of NAMES, with the soak and GPU machines last."""
    sections = {name: text}
    for old in re.split(r"(?m)^(?=## )", results)[1:]:
        sections.setdefault(old.split()[1], "\n" + old.rstrip() + "\n")
    return HEADER + "".join(sections[known] for known in (*NAMES, *PROGRAMS) if known in sections)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
