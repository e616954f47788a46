"""Runs every benchmark and writes RESULTS.md; names after `python -m benchmarks` choose some, and print only."""

from __future__ import annotations

import datetime
import importlib
import sys

from benchmarks.common import ROOT, Row, machine
from harness.machine import code_version

NAMES = ("startup", "planning", "submission", "worker", "report")

HEADER = """# What this program itself costs

Written by `make bench` on {date}, code {code}. Machine: {machine}.
Figures are medians (smallest to largest of n). Ours and the peer were run in turns, in one run; the ratio, ours to the
peer's, is the median over the pairs. How each is measured stands at the head of its file in this folder.

| what | ours | peer | ratio | target | n |
|---|---|---|---|---|---|
"""


def main(chosen: list[str]) -> int:
    unknown = set(chosen) - set(NAMES)
    if unknown:
        print(f"error: no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for name in chosen or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").rows()
    text = HEADER.format(date=datetime.date.today(), code=code_version(ROOT), machine=machine())
    text += "".join(f"| {' | '.join(row.cells())} |\n" for row in rows)
    print(text)
    if not chosen:
        (ROOT / "benchmarks" / "RESULTS.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
