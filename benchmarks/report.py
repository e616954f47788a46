"""Time and memory of `python -m analysis`: on two runs, and on 10,000 runs with 400 logged blocks each.

The study comes from many_runs.py: 12,500 logs, 1.2 GB. "First" starts without `analysis/runs.parquet`, "again" with it:
each is a process that reads the study (`read_study`), including imports; then the whole command, with one kind of
output or with all. Memory is the peak RSS of the process and its children, sampled every 50 ms. CPU time is of all of
them, which on a shared machine says more than wall time. The peer, polars.read_ndjson in an environment of its own,
parses one in PEER_SHARE of the same logs without processing them; its time is given for all of them. Alternating,
n = RUNS_OF_EACH; files are in the page cache as far as they fit. Results are in RESULTS.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.common import Cost, Row, cost_of, paired, python
from benchmarks.many_runs import BLOCKS, RUNS, make_study, two_runs

RUNS_OF_EACH = int(os.environ.get("BENCHMARK_REPORT_N", "6"))
PEER, PEER_SHARE = "polars==2.1.0", 8
READ = "import sys; from pathlib import Path; from analysis.read.study import read_study; read_study(Path(sys.argv[1]))"
PEER_CODE = (
    "import glob, polars, sys; "
    f"[polars.read_ndjson(log, infer_schema_length=None) "
    f"for log in sorted(glob.glob(sys.argv[1] + '/runs/*/attempt-1/*.jsonl'))[::{PEER_SHARE}]]"
)


def rows() -> list[Row]:
    costs: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        study, two, peer = (Path(temporary) / name for name in ("ten-thousand", "two", "peer"))
        make_study(study, RUNS)
        two_runs(study, two)
        interpreter = _peer(peer)
        for _ in range(RUNS_OF_EACH):
            for folder in (study, two):
                (folder / "analysis" / "runs.parquet").unlink(missing_ok=True)
            for name, command in {
                "two html": python("-m", "analysis", str(two), "--only", "html"),
                "two": python("-m", "analysis", str(two)),
                "first": python("-c", READ, str(study)),
                "again": python("-c", READ, str(study)),
                "html": python("-m", "analysis", str(study), "--only", "html"),
                "all": python("-m", "analysis", str(study)),
                "peer": [interpreter, "-c", PEER_CODE, str(study)],
            }.items():
                costs.setdefault(name, []).append(cost_of(command))
        size = (study / "report.html").stat().st_size / 1e6
    seconds = {name: [cost.seconds for cost in of] for name, of in costs.items()}
    cpu = {name: [cost.cpu_seconds for cost in of] for name, of in costs.items()}
    ours = ("first", "again", "html", "all")
    most = [max(costs[name][i].peak_gb for name in ours) for i in range(RUNS_OF_EACH)]
    peer_seconds, peer_cpu = ([PEER_SHARE * value for value in of["peer"]] for of in (seconds, cpu))
    return [
        Row("2 runs: the page (--only html)", "s", seconds["two html"], target="≤ 1.2 s"),
        Row("… CPU time", "s", cpu["two html"]),
        Row("2 runs: everything", "s", seconds["two"], target="≤ 2.5 s"),
        Row("… CPU time", "s", cpu["two"]),
        paired(
            *(f"{RUNS:,} runs of {BLOCKS} blocks: first read", "s", seconds["first"]),
            *("polars.read_ndjson", peer_seconds, "≤ 8 s"),
        ),
        paired("… CPU time", "s", cpu["first"], "polars.read_ndjson", peer_cpu),
        Row("… read again (cached)", "s", seconds["again"], target="≤ 1 s"),
        Row("… CPU time", "s", cpu["again"]),
        Row("… the page (--only html), cached", "s", seconds["html"]),
        Row("… everything, cached", "s", seconds["all"], target="≤ 12 s"),
        Row("… CPU time", "s", cpu["all"]),
        Row("… memory, the most of these", "GB", most, target="≤ 1 GB"),
        Row("… report.html", "MB", [size], target="≤ 10 MB"),
    ]


def _peer(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    interpreter = str(folder / "bin" / "python")
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", PEER], check=True)
    return interpreter


if __name__ == "__main__":
    sys.exit("run it with: python -m benchmarks report")
