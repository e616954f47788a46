"""Studies for the tests of paper outputs: an ordinary one, and one with hostile names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from study_builder import Logs, StudyBuilder, spec_of

from analysis.read.study import read_study
from analysis.report.findings import Findings, findings_of
from harness.core.spec import ClusterSpec, Placement

# Markup and commands of LaTeX, Typst, Markdown, HTML and terminals.
HOSTILE = (
    "\\undefined{x} $x^2$ a&b 50% c_d #panic() {e} ~f ^g `h` *i* [j](k) <img src=x onerror=alert(1)> @l | \"m\" 'n' "
    "-- ,, ü µ 中 \\"
)
HOSTILE_REASON = HOSTILE + " https://e.vil/ \x1b[31m \u202e \\end{document}"
# Factors that give intervals a width.
NOISE = (1.0, 1.004, 0.997)


def rounds(stall: float, exposed: float, computing: float) -> dict[str, list[float]]:
    """Make eight rounds of the probes, in seconds per step."""
    steps = {"no_sync": computing, "cached_batch": computing + exposed, "full": computing + exposed + stall}
    return {name: [seconds * NOISE[i % 3] for i in range(8)] for name, seconds in steps.items()}


def add_series(study: StudyBuilder, sizes: tuple[int, ...] = (1, 2, 4), **changes) -> None:
    """Add three runs of each size, each evaluated three times; a step takes 0.1 s, plus 4 ms per doubling."""
    for doublings, gpus in enumerate(sizes):
        seconds = 0.1 + 0.004 * doublings
        for repeat, factor in enumerate(NOISE):
            spec = spec_of(
                gpus, repeat=repeat, seed=repeat, placement=Placement(max(1, gpus // 4), min(gpus, 4)), **changes
            )
            logs = Logs(
                block_seconds=[10 * seconds * factor * noise for noise in NOISE * 4],
                rounds=rounds(0.001, 0.003 * doublings, 0.099 + 0.001 * doublings),
                evaluations={30: 0.4, 60: 0.5},
                accuracy=0.6,
            )
            study.add(spec, logs)


def plain_study(folder: Path) -> Findings:
    study = StudyBuilder(folder)
    add_series(study)
    study.add(spec_of(8), Logs(), result={"status": "failed", "reason": "rank 3 ended with signal 9"})
    return findings_of(read_study(study.folder))


def hostile_study(folder: Path) -> Findings:
    study = StudyBuilder(folder, HOSTILE)
    cluster = ClusterSpec(HOSTILE, "cuda", 8)
    add_series(study, (1, 2), model=HOSTILE, cluster=cluster)
    named = Logs(device_name=HOSTILE, versions={HOSTILE: HOSTILE}, communication=HOSTILE)
    study.add(spec_of(4, model=HOSTILE, cluster=cluster), named)
    reason = {"status": "failed", "reason": HOSTILE_REASON}
    study.add(spec_of(8, model=HOSTILE, cluster=cluster), Logs(), result=reason)
    return findings_of(read_study(study.folder))


def typeset(folder: Path, body: str) -> Path:
    """Typeset main.pdf from a document with this body and return pdflatex's log; skips the test without LaTeX."""
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex (sbatch/system-packages.sh)")
    preamble = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n"
    document = f"{preamble}\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (folder / "main.tex").write_text(document, encoding="ascii")
    command = ["pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    return folder / "main.log"
