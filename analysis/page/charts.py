"""The drawings in the page: by section, and one configuration for both themes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis import charts
from analysis.charts import Chart, themes, vega_script
from analysis.charts.chart import VEGA_LITE

SECTIONS = ("scaling", "breakdown", "learning", "cost", "prediction", "steadiness")


def by_section(drawn: Iterable[Chart]) -> dict[str, list[Chart]]:
    """Every section has its list, also an empty one."""
    found: dict[str, list[Chart]] = {section: [] for section in SECTIONS}
    for chart in drawn:
        found[chart.section].append(chart)
    return found


def one_theme() -> tuple[dict[str, Any], str, str]:
    """(Vega-Lite's configuration, CSS of the light theme, CSS of the dark one). What the themes differ in are CSS
    variables: what is drawn follows a switch of the theme, and the printer, without being drawn again."""
    both = themes()
    light: list[str] = []
    dark: list[str] = []

    def merged(in_light: Any, in_dark: Any) -> Any:
        if isinstance(in_light, dict):
            return {key: merged(value, in_dark[key]) for key, value in in_light.items()}
        if isinstance(in_light, list):
            return [merged(*pair) for pair in zip(in_light, in_dark, strict=True)]
        if in_light == in_dark:
            return in_light
        name = f"--drawn-{len(light)}"
        light.append(f"{name}: {in_light};")
        dark.append(f"{name}: {in_dark};")
        return f"var({name})"

    config = merged(both["light"], both["dark"])
    return config, " ".join(light), " ".join(dark)


@cache
def kept_vega_script() -> str:
    """`vega_script`, kept in the user's cache: to put it together takes longer (1.4 s) than the rest of a report."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path("~/.cache").expanduser()) / "scaling-harness"
    ours = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(charts.__file__).parent.glob("*.js"))))
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
