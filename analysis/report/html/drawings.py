"""The charts of the page by section, with one configuration for both themes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from analysis.report.charts.chart import Chart
from analysis.report.charts.theme import themes

SECTIONS = ("scaling", "breakdown", "learning", "cost", "prediction", "steadiness")


def by_section(drawn: Iterable[Chart]) -> dict[str, list[Chart]]:
    """Every section has a list, which may be empty."""
    found: dict[str, list[Chart]] = {section: [] for section in SECTIONS}
    for chart in drawn:
        found[chart.section].append(chart)
    return found


def one_theme() -> tuple[dict[str, Any], str, str]:
    """(Vega-Lite configuration, CSS of the light theme, CSS of the dark theme). The themes differ in CSS variables,
    so charts follow a change of theme, and printing, without being redrawn."""
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
