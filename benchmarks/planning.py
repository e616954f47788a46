"""How long a sweep takes to be planned, per point, beside Hydra's basic launcher on the same configuration.

Ours: `python -m harness -m` with 1,000 points and plan_only=true, the whole process: compose, check, place,
hash, group, look for results. The peer: `hydra.main` with the same conf/, schema and overrides, 100 points, a
task function that does nothing, the whole process. In turns, n = 3. The results are in RESULTS.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.common import Row, paired, python, seconds_of

N = 3
OURS, PEER = 200, 20  # seeds; each with five GPU counts
BASIC = """
import hydra
from harness.config import composition
composition.register()
hydra.main(version_base="1.3", config_path=str(composition.CONF), config_name="config")(lambda cfg: None)()
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        basic = Path(folder) / "basic.py"
        basic.write_text(BASIC)
        sweep = ["-m", "gpus=1,2,4,8,12", "cluster=slurm", "dataset=synthetic"]
        ours, peer = [], []
        for _ in range(N):
            command = python("-m", "harness", *sweep, f"seed=range(0,{OURS})", "plan_only=true")
            ours.append(1000 * seconds_of(command, cwd=folder) / (5 * OURS))
            command = python(str(basic), *sweep, f"seed=range(0,{PEER})", f"hydra.sweep.dir={folder}/sweep")
            peer.append(1000 * seconds_of(command, cwd=folder) / (5 * PEER))
    what = "planning, per point of a sweep of 1,000"
    target = "≤ 10 ms, and less than the peer"
    return [paired(what, "ms", ours, "Hydra's basic launcher, 100 points", peer, target)]
