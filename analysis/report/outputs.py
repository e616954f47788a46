"""The outputs of `python -m analysis` by kind, each a function of the findings.

A kind's module is imported on demand, so that a table needs no plotting library.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError

if TYPE_CHECKING:
    from analysis.report.findings import Findings
    from analysis.report.print.paper import Paper

# (module, function, what it writes). The function takes Findings and returns bytes by the names of their files, which
# are relative to the folder of the report. The figures are rendered while those before them are written; report.pdf
# is last, since it takes as much memory as the processes that render them.
OUTPUTS = {
    "html": ("analysis.report.html.render", "page_of", "report.html"),
    "csv": ("analysis.report.data.csv_tables", "csv_of", "a table of each kind as .csv"),
    "data": ("analysis.report.data.files", "data_of", "runs.csv, runs.parquet, report.json"),
    "tex": ("analysis.report.print.tables", "tex_of", "tables.tex, with booktabs"),
    "figures": ("analysis.report.print.figures", "figures_of", "figures/ as .pdf, .svg and .png"),
    "pdf": ("analysis.report.print.pdf", "pdf_of", "report.pdf"),
}


def kinds_of(text: str | None) -> tuple[str, ...]:
    """The kinds named by a text such as "html,csv"; None for all. Raises StudyError for unknown kinds."""
    if text is None:
        return tuple(OUTPUTS)
    kinds = tuple(dict.fromkeys(kind.strip() for kind in text.split(",")))
    if unknown := [kind for kind in kinds if kind not in OUTPUTS]:
        raise StudyError(f"--only {text}: there is no '{unknown[0]}'; the kinds are {', '.join(OUTPUTS)}")
    return kinds


def documents_of(findings: Findings, kinds: Iterable[str], paper: Paper | None = None) -> Mapping[str, bytes]:
    """The files of these kinds by name. paper: settings of the figures."""
    documents: dict[str, bytes] = {}
    wanted = set(kinds)
    if "figures" in wanted:
        from analysis.report.print.figures import PAPER, figure_specs

        figure_specs(findings, paper or PAPER)
    for kind, (module, function, _) in OUTPUTS.items():
        if kind in wanted:
            write = getattr(importlib.import_module(module), function)
            documents |= write(findings, paper) if kind == "figures" and paper else write(findings)
    return documents
