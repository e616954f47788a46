"""Time and memory of `python -m analysis` on a study of 10,000 runs with 400 logged blocks each.

The study comes from many_runs.py: 13,000 logs, 1.2 GB. "First" starts without `analysis/runs.parquet`, "again" with it:
each is a process that reads the study (`read_study`), including imports; then the whole command with one kind of
output. Memory is the peak RSS of the process and its children, sampled every 50 ms. CPU time is of all of them, which
on a shared machine says more than wall time. The peers read the same logs without processing them, file by file in one
process: pandas.read_json and polars.read_ndjson, in a separate environment. (duckdb is omitted: its union of so many
files ran out of memory at 24 GB, and file by file it had not finished after three minutes.) Alternating, n =
RUNS_OF_EACH; files are in the page cache as far as they fit. Results are in RESULTS.md.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import venv
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import ROOT, Row, paired, python
from benchmarks.many_runs import BLOCKS, RUNS, make_study

RUNS_OF_EACH = int(os.environ.get("BENCHMARK_REPORT_N", "6"))
PEERS = ("pandas==3.1.1", "polars==2.1.0")
READ = "import sys; from pathlib import Path; from analysis.read.study import read_study; read_study(Path(sys.argv[1]))"
FILES = "import glob, sys; logs = glob.glob(sys.argv[1] + '/runs/*/attempt-1/*.jsonl')"
PEER_CODE = {
    "pandas.read_json": f"{FILES}; import pandas; [pandas.read_json(log, lines=True) for log in logs]",
    "polars.read_ndjson": f"{FILES}; import polars; "
    "[polars.read_ndjson(log, infer_schema_length=None) for log in logs]",
}


class Cost(NamedTuple):
    """seconds: wall time. cpu_seconds, peak_gb: of the process and its children."""

    seconds: float
    cpu_seconds: float
    peak_gb: float


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        study, peers = Path(temporary) / "ten-thousand", Path(temporary) / "peers"
        make_study(study, RUNS)
        interpreter = _peers(peers)
        costs: dict[str, list[Cost]] = {}
        for _ in range(RUNS_OF_EACH):
            (study / "analysis" / "runs.parquet").unlink(missing_ok=True)
            for name, command in {
                "first": python("-c", READ, str(study)),
                "again": python("-c", READ, str(study)),
                "csv": python("-m", "analysis", str(study), "--only", "csv"),
                "html": python("-m", "analysis", str(study), "--only", "html"),
                **{peer: [interpreter, "-c", code, str(study)] for peer, code in PEER_CODE.items()},
            }.items():
                costs.setdefault(name, []).append(_cost_of(command))
        size = (study / "report.html").stat().st_size / 1e6
    peer = list(PEER_CODE)
    what = f"{RUNS:,} runs of {BLOCKS} blocks"
    first = [cost.seconds for cost in costs["first"]]
    found = []
    for name in peer:
        beside = [cost.seconds for cost in costs[name]]
        target = "≤ 60 s" if name == peer[0] else ""
        found.append(paired(f"{what}: first read", "s", first, name, beside, target))
    cpu, cpu_of_peer = ([cost.cpu_seconds for cost in costs[name]] for name in ("first", peer[0]))
    found.append(paired("… CPU time", "s", cpu, peer[0], cpu_of_peer))
    found.append(Row("… read again (cached)", "s", [cost.seconds for cost in costs["again"]], target="≤ 2 s"))
    found.append(Row("… CPU time", "s", [cost.cpu_seconds for cost in costs["again"]]))
    for kind in ("csv", "html"):
        found.append(Row(f"… whole command, cached, --only {kind}", "s", [cost.seconds for cost in costs[kind]]))
        found.append(Row("… CPU time", "s", [cost.cpu_seconds for cost in costs[kind]]))
    most = [max(costs[name][i].peak_gb for name in ("first", "again", "csv", "html")) for i in range(RUNS_OF_EACH)]
    found.append(Row("… memory, the most of these", "GB", most, target="≤ 2 GB"))
    found.append(Row("… report.html", "MB", [size], target="≤ 10 MB"))
    return found


def _peers(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    interpreter = str(folder / "bin" / "python")
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *PEERS], check=True)
    return interpreter


def _cost_of(command: list[str]) -> Cost:
    """Measure a command. Raises RuntimeError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - begin
    watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise RuntimeError(f"exit code {code}: {command}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(seconds, cpu, peak[0] / 1e9)


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], _resident(process.pid))
        time.sleep(0.05)


def _resident(pid: int) -> int:
    """Resident bytes of a process and its descendants."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):  # it has ended
        return 0
    return own + sum(_resident(int(child)) for child in children)


if __name__ == "__main__":
    sys.exit("run it with: python -m benchmarks report")
