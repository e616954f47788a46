"""The parts of a trace of a GPU are those that Holistic Trace Analysis finds in it."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
from pathlib import Path

import pytest
from programs import WORKLOADS
from project import PROJECT

KERNELS = {
    "gemm": "kernel",
    "elementwise": "kernel",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "kernel",
    "Memcpy HtoD (Pinned -> Device)": "gpu_memcpy",
}
ASK = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]})
(parts,) = found.get_temporal_breakdown(visualize=False).to_dict("records")
(overlap,) = found.get_comm_comp_overlap(visualize=False).to_dict("records")
print(json.dumps({**parts, **overlap}, default=float))
"""


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(3))
def test_parts_are_those_of_holistic_trace_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    python = WORKLOADS / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment workloads: `make test-workloads` builds it")
    draw, events = random.Random(seed), []
    for number in range(300):
        name, stream = draw.choice(list(KERNELS)), draw.choice((7, 20))
        begin, asked = 30 * number + draw.randint(0, 60), {"correlation": number + 1}
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 100, "ts": begin - 3, "dur": 2}
        kernel = {"cat": KERNELS[name], "name": name, "pid": 0, "tid": stream, "ts": begin, "dur": draw.randint(5, 90)}
        events.append({"ph": "X", **launch, "args": asked})
        events.append({"ph": "X", **kernel, "args": {**asked, "stream": stream, "device": 0}})
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": events}))
    done = subprocess.run([python, "-c", ASK, file], stdout=subprocess.PIPE, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])

    monkeypatch.syspath_prepend(str(PROJECT / "harness" / "probe"))
    ours = importlib.import_module("_scaling_probe.trace_parts").parts_of(events)
    names = {"window": "kernel_time(us)", "compute": "compute_time(us)", "idle": "idle_time(us)"}
    assert {name: 1e6 * ours[name] for name in names} == pytest.approx({n: theirs[key] for n, key in names.items()})
    neither = ours["exposed_communication"] + ours["copies"]
    assert 1e6 * neither == pytest.approx(theirs["non_compute_time(us)"])
    covered = 1 - ours["exposed_communication"] / ours["communication"]
    assert 100 * covered == pytest.approx(theirs["comp_comm_overlap_pctg"], abs=0.01)
