"""The script that draws in the page: Vega's, with our legends."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

from analysis.report.charts.chart import VEGA_LITE

LEGEND = Path(__file__).with_name("legend.js")


@cache
def vega_script() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed (0.9 MB), which sets `vegaEmbed` of the page's window; what
    that draws has legends that the keyboard reaches. It loads nothing from elsewhere."""
    import vl_convert

    # By default it does nothing but set what is exported; the stub has `snippet` without its default.
    bundle = vl_convert.javascript_bundle(None, vl_version=VEGA_LITE)  # type: ignore[arg-type]
    return bundle + LEGEND.read_text(encoding="utf-8")


@cache
def kept_vega_script() -> str:
    """`vega_script`, kept in the user's cache: to put it together takes longer (1.4 s) than the rest of a report."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path("~/.cache").expanduser()) / "scaling-harness"
    ours = hashlib.sha256(LEGEND.read_bytes())
    path = folder / f"vega-lite-{VEGA_LITE}-vl-convert-{version('vl-convert-python')}-{ours.hexdigest()[:12]}.js"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        script = vega_script()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(script, encoding="utf-8")
        temporary.replace(path)
    except OSError:  # a report can do without it
        temporary.unlink(missing_ok=True)
    return script
