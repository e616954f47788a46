"""Time of `python -m harness --help` compared with the smallest Hydra application.

Both are separate processes from start to exit, alternating, with files in the page cache. n = 40. Results are in
RESULTS.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.common import Row, paired, python, seconds_of

N = 40
BARE = """
import hydra
@hydra.main(version_base="1.3", config_path=None)
def app(cfg): pass
app()
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        ours, peer = [], []
        for _ in range(N):
            ours.append(seconds_of(python("-m", "harness", "--help"), cwd=folder))
            peer.append(seconds_of(python(str(bare), "--help"), cwd=folder))
    return [
        paired("`python -m harness --help`", "s", ours, "bare Hydra app", peer, "≤ 0.35 s, and ≤ 1.0 of the peer"),
    ]
