"""tables.tex: the tables of a study for a LaTeX document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.paper.latex import tables_tex
from analysis.paper.tables import paper_tables

if TYPE_CHECKING:
    from analysis.findings import Findings


def tex_of(findings: Findings) -> dict[str, bytes]:
    """tables.tex, in ASCII."""
    return {"tables.tex": tables_tex(paper_tables(findings), findings.study.name).encode("ascii")}
