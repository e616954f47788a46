"""Records the step times of long runs for protocol.py: `python -m benchmarks.record`, about 20 minutes. Other load on
the machine is part of the recording, and the load average is noted.

Each run takes a fixed number of steps. Kept are the mean step times of blocks of ten steps on the slowest rank, in
seconds, from the first block on (without its first step, which compiles).
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, harness, machine
from harness.core.events import read_events, read_result
from harness.core.measuring.protocol import FIRST
from harness.core.spec import read_run
from harness.plan.machine import code_version

RECORDED = ROOT / "benchmarks" / "recorded" / "step_times.json"
BLOCK_STEPS, BLOCKS, REPEATS = 10, 80, 2
MODELS = ("cnn_small", "resnet20")
# (ranks, frameworks). Two ranks use all cores of the smallest machine this was run on.
SETTINGS = ((1, ("pytorch", "tensorflow", "mxnet", "jax")), (2, ("pytorch",)))


def main() -> int:
    runs = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for ranks, frameworks in SETTINGS:
            run_dirs = harness(
                *(Path(folder), f"of{ranks}", "-m", f"gpus={ranks}", f"framework={','.join(frameworks)}"),
                *("cluster=local", "cluster.device=cpu", f"model={','.join(MODELS)}", "dataset=synthetic", "batch=8"),
                *("measure.warmup_limit_steps=null", "measure.precision=null", f"measure.block_steps={BLOCK_STEPS}"),
                *(f"measure.steps={BLOCK_STEPS * BLOCKS}", "measure.probe_steps=0", "measure.evaluate_samples=0"),
                f"repeat={','.join(map(str, range(REPEATS)))}",
            )
            runs += map(recorded, run_dirs)
    about = {"date": str(datetime.date.today()), "code": code_version(ROOT), "machine": machine()}
    loads = [round(load, 1), round(os.getloadavg()[0], 1)]
    document = {**about, "load_before_and_after": loads, "block_steps": BLOCK_STEPS, "runs": runs}
    lines = json.dumps({**document, "runs": []}, indent=1)[: -len("[]\n}")]
    RECORDED.write_text(lines + "[\n  " + ",\n  ".join(map(json.dumps, runs)) + "\n ]\n}\n", encoding="utf-8")
    return 0


def recorded(run_dir: Path) -> dict[str, Any]:
    """The run with the seconds per step of its blocks."""
    result = read_result(run_dir)
    assert result is not None
    assert result["status"] == "completed", f"{run_dir.name}: {result['reason']}"
    spec, _ = read_run(run_dir)
    by_step: dict[int, list[float]] = defaultdict(list)
    for rank in range(spec.gpus):
        for event in read_events(run_dir / "attempt-1" / f"events.rank{rank}.jsonl").events:
            if event["ev"] == "steps" and event["phase"] != FIRST:
                by_step[event["step"]].append(event["seconds"] / event["n"])
    seconds = [float(f"{max(by_step[step]):.5g}") for step in sorted(by_step)]
    about = {"framework": spec.framework, "model": spec.model, "ranks": spec.gpus, "batch_per_rank": spec.batch_per_gpu}
    return {**about, "oversubscribed": result["oversubscribed"], "seconds_per_step": seconds}


if __name__ == "__main__":
    sys.exit(main())
