"""Figures as .pgf: drawing commands that a LaTeX document reads, so that the figure's text is set in its fonts."""

from __future__ import annotations

import io
import shutil
import subprocess
from functools import cache
from typing import Any

from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_pgf import RendererPgf
from matplotlib.figure import Figure

from analysis.report.print.latex import escaped

LATEX = "pdflatex"
# What the measuring document of matplotlib reads (paper.mplstyle, and its own).
NEEDED = ("pgf.sty", "lmodern.sty", "underscore.sty", "graphicx.sty")
HEADER = "%% \\input this file; the preamble needs \\usepackage{pgf}.\n"


@cache
def why_no_pgf() -> str | None:
    """Why none can be written; None where it can."""
    if shutil.which(LATEX) is None or shutil.which("kpsewhich") is None:
        return f"there is no {LATEX} here, and its text is measured with it"
    found = subprocess.run(["kpsewhich", *NEEDED], capture_output=True, text=True, check=False).stdout
    lacking = [name for name in NEEDED if f"/{name}" not in found]
    return f"this LaTeX lacks {', '.join(lacking)}" if lacking else None


def pgf_of(figure: Figure) -> bytes:
    """Under the `style` that it was drawn under, and only where `why_no_pgf` says nothing. ASCII."""
    stream = io.StringIO()
    width, height = map(float, figure.get_size_inches())
    stream.write(HEADER)
    stream.write("\\begingroup%\n\\makeatletter%\n\\begin{pgfpicture}%\n")
    stream.write(f"\\pgfpathrectangle{{\\pgfpointorigin}}{{\\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}%\n")
    stream.write("\\pgfusepath{use as bounding box, clip}%\n")
    renderer: Any = MixedModeRenderer(figure, width, height, figure.dpi, _Escaping(figure, stream))
    figure.draw(renderer)
    stream.write("\\end{pgfpicture}%\n\\makeatother%\n\\endgroup%\n")
    return stream.getvalue().encode("ascii")


class _Escaping(RendererPgf):
    """matplotlib's own hands texts to TeX as they are: a name could be a command."""

    def draw_text(self, gc: Any, x: float, y: float, s: str, *others: Any, **named: Any) -> None:
        super().draw_text(gc, x, y, escaped(s), *others, **named)

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        return super().get_text_width_height_descent(escaped(s), prop, ismath)
