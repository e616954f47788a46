"""Planning time per point of a sweep, compared with Hydra's basic launcher on the same configuration.

Ours: the whole process of `python -m harness -m` with 1,000 points and plan_only=true, which composes, checks, places,
hashes, groups and looks for results; once over seeds, once over dictionaries; and with the 200 points of a grid over
frameworks, strategies and models. The peer: the whole process of `hydra.main` with the same conf/, schema and overrides
as over seeds, 100 points and an empty task function. Alternating, n = 6. Results are in RESULTS.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from omegaconf import OmegaConf

from benchmarks.common import Row, paired, python, seconds_of
from harness.config import composition

N = 6
OURS, PEER = 200, 20  # seeds; each with five GPU counts
# In blocks of ten steps, of which an interval of the mean needs six.
DICTIONARIES = ",".join(f"{{steps: {60 + 10 * i}}}" for i in range(OURS))
# The groups of a preset's sweep, without environments and data.
PRESET = OmegaConf.load(composition.CONF / "experiment" / "frameworks_v100.yaml").hydra.sweeper.params
GRID = [f"{key}={values}" for key, values in PRESET.items() if key != "gpus"]
GRID += [f"framework.environment={sys.executable}", "data.check=false"]
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
        ours, dictionaries, grid, peer = [], [], [], []
        for _ in range(N):
            command = python("-m", "harness", *sweep, f"seed=range(0,{OURS})", "plan_only=true")
            ours.append(1000 * seconds_of(command, cwd=folder) / (5 * OURS))
            command = python(str(basic), *sweep, f"seed=range(0,{PEER})", f"hydra.sweep.dir={folder}/sweep")
            peer.append(1000 * seconds_of(command, cwd=folder) / (5 * PEER))
            command = python("-m", "harness", *sweep, f"measure={DICTIONARIES}", "plan_only=true")
            dictionaries.append(1000 * seconds_of(command, cwd=folder) / (5 * OURS))
            command = python("-m", "harness", *sweep, *GRID, "plan_only=true")
            grid.append(1000 * seconds_of(command, cwd=folder) / 200)
    name, target = "Hydra's basic launcher, 100 points", "≤ 2 ms, and less than the peer"
    return [
        paired("planning, per point of a sweep of 1,000", "ms", ours, name, peer, target),
        paired("… over dictionaries", "ms", dictionaries, name, peer, target),
        paired("… of a grid of 200 over groups", "ms", grid, name, peer, target),
    ]
