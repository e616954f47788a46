"""Cost of the hooks in a user's PyTorch script (harness/probe), compared with the same script without them.

The two alternate, one process each. A step of the script takes about 0.3 ms. The hooks cost the same in a step of any
length, so their share of a step of 10 ms is computed from the difference. The CPU time of the training thread is
counted, since 50 µs are lost in the noise of 10 ms of wall time on a shared machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common import ROOT, Row, interval_of_median

ABOUT = "Ratio: of a step of 10 ms with hooks to one without."
PAIRS = 12
STEP_MICROSECONDS = 10_000
PROBE = ROOT / "harness" / "probe"
PYTHON = ROOT / ".envs" / "pytorch" / "bin" / "python"


def rows() -> list[Row]:
    bare, hooked = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(PAIRS):
            bare.append(step_microseconds(None))
            hooked.append(step_microseconds(Path(folder)))
    shares = [
        (above - below + STEP_MICROSECONDS) / STEP_MICROSECONDS for above, below in zip(hooked, bare, strict=True)
    ]
    return [
        Row(
            "hooks in a step of 10 ms: CPU time per step, from one of 0.3 ms",
            "µs",
            hooked,
            "without hooks",
            bare,
            median(shares),
            "≤ 1.005",
            interval_of_median(shares),
        )
    ]


def step_microseconds(folder: Path | None) -> float:
    """CPU microseconds per step of sides/probe_script.py; with the hooks if there is a folder for their log."""
    script = [str(ROOT / "benchmarks" / "sides" / "probe_script.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if folder is not None:
        settings = {
            "v": 1,
            "rank": 0,
            "world_size": 1,
            "events": str(folder / "events.jsonl"),
            "steps": {"warmup": 10, "block": 10, "last": None},
            "samples_per_step": 8,
            "start": {"device": "cpu"},
        }
        (folder / "probe.json").write_text(json.dumps(settings))
        environment.update(SCALING_PROBE=str(folder / "probe.json"), PYTHONPATH=str(PROBE))
        script.insert(0, str(PROBE / "scaling_probe_run.py"))
    done = subprocess.run([str(PYTHON), *script], check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.splitlines()[-1])
