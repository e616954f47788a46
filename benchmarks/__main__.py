"""Runs all benchmarks, or those named after `python -m benchmarks`, and writes their sections of RESULTS.md.

`python -m benchmarks gpu_check` checks a GPU machine and has its own options (docs/gpu.md).
"""

from __future__ import annotations

import datetime
import importlib
import os
import re
import sys

from benchmarks.common import ROOT, Row, machine
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
)
# Checks a GPU machine; its findings are the last section of RESULTS.md.
GPU_CHECK = "gpu_check"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"

HEADER = """# What this program itself costs

Written by `make bench`, and by `python -m benchmarks <name>` one section at a time. Figures are medians (smallest to
largest of n). Ours and the peer were run in turns, in one run; the ratio, ours to the peer's, is the median over the
pairs. Its interval, at 95 %, is that of the median by the sign test, which asks nothing of the distribution; fewer than
six pairs have none. How each is measured stands at the head of its file in this folder.
"""

SECTION = """
## {name}

{date}, code {code}. Machine: {machine}; load {load:.1f} before.

| what | ours | peer | ratio | 95 % | target | n |
|---|---|---|---|---|---|---|
"""


def main(chosen: list[str]) -> int:
    if chosen and chosen[0] == GPU_CHECK:
        return importlib.import_module("benchmarks.gpu_check.command").main(chosen[1:])
    unknown = set(chosen) - set(NAMES)
    if unknown:
        print(
            f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join((*NAMES, GPU_CHECK))}",
            file=sys.stderr,
        )
        return 2
    # Before writing the first section, since RESULTS.md is part of the checkout.
    code = code_version(ROOT)
    for name in chosen or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        load = os.getloadavg()[0]
        text = section(name, code, load, importlib.import_module(f"benchmarks.{name}").rows())
        print(text)
        # Written one by one, so that earlier results survive a later failure.
        RESULTS.write_text(with_section(RESULTS.read_text(encoding="utf-8"), name, text), encoding="utf-8")
    return 0


def section(name: str, code: str, load: float, rows: list[Row]) -> str:
    """Format a section. load: the machine's load average when the benchmark started."""
    about = {"date": datetime.date.today(), "code": code, "machine": machine(), "load": load}
    text = SECTION.format(name=name, **about)
    return text + "".join(f"| {' | '.join(row.cells())} |\n" for row in rows)


def with_section(results: str, name: str, text: str) -> str:
    """Insert or replace a section in RESULTS.md, in the order of NAMES, with GPU machines last."""
    sections = {name: text}
    for old in re.split(r"(?m)^(?=## )", results)[1:]:
        sections.setdefault(old.split()[1], "\n" + old.rstrip() + "\n")
    return HEADER + "".join(sections[known] for known in (*NAMES, GPU_CHECK) if known in sections)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
