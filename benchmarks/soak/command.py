"""`python -m benchmarks soak`: runs a soak, writes its files, and prints and records its figures."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import ROOT
from benchmarks.soak import schedule
from benchmarks.soak.record import record, summary
from benchmarks.soak.soak import CPUS, NODES, Soak, disk, report, shapes, write_report
from benchmarks.submission import cluster
from harness.core.errors import UserError
from harness.plan.machine import code_version

MINUTES, SEED, SINGLE_RUNS, PAIR_RUNS = 60.0, 1, 200, 8
OUT = ROOT / "build" / "soak"


def main(argv: Sequence[str]) -> int:
    """Return the exit code: 0 nothing lost, run twice or wrongly reported, 1 otherwise, 2 invalid request."""
    asked = _parser().parse_args(argv)
    try:
        if asked.record_only:
            record(_read(asked.record_only))
            return 0
        return _soak(asked)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks soak", description="Random faults on a virtual Slurm cluster while studies run."
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="how long faults are made (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the faults (default: %(default)s)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="the faults of a soak's schedule.json instead")
    parser.add_argument("--runs", type=int, default=SINGLE_RUNS, help="one-node runs of a round (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=PAIR_RUNS, help="two-node runs of a round (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder for schedule, journal, logs (default: build/soak)"
    )
    parser.add_argument("--record", action="store_true", help="put the figures into benchmarks/RESULTS.md")
    parser.add_argument(
        "--record-only", type=Path, metavar="FILE", help="put those of a report.json there, run nothing"
    )
    return parser


def _soak(asked: argparse.Namespace) -> int:
    if why := why_not():
        raise UserError(why)
    if asked.minutes <= 0 or asked.runs < 1 or asked.pairs < 1:
        raise UserError("--minutes, --runs and --pairs must be greater than 0")
    seed, seconds = asked.seed, asked.minutes * 60
    if asked.replay:
        faults, seed, seconds = schedule.read(asked.replay)
    else:
        faults = schedule.draw(seed, seconds)
    shutil.rmtree(asked.out, ignore_errors=True)
    asked.out.mkdir(parents=True)
    schedule.write(asked.out / "schedule.json", faults, seed, seconds)
    code, load, begin = code_version(ROOT), os.getloadavg()[0], time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    try:
        with disk(folder / "disk") as work, cluster(cpus=CPUS, nodes=NODES):
            soak = Soak(work, asked.out.absolute(), shapes(asked.runs, asked.pairs), faults, seconds)
            soak.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    document = {**report(soak, seed), "code": code, "load": load, "seconds": time.monotonic() - begin}
    write_report(asked.out, document)
    print(summary(document))
    if asked.record:
        record(document)
    return 1 if document["findings"] else 0


def why_not() -> str:
    """Why this machine cannot run a soak; empty if it can."""
    if os.geteuid() != 0 or shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        return "a soak needs root, and Slurm for a cluster of its own: sbatch/system-packages.sh slurm"
    return ""


def _read(path: Path) -> dict[str, object]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
