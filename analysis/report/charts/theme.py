"""Light and dark themes of the charts, as Vega-Lite configurations.

Specs name no colours of text, grid or series. Series use the range `category`; hollow points use the style `hollow`,
which fills them with the page's background.
"""

from __future__ import annotations

from typing import Any

from analysis.report.palette import IDEAL, LOOKS, UNNAMED

# (page, text, subdued text, grid, axis)
_LIGHT = ("#FFFFFF", "#1F2937", "#4B5563", "#E5E7EB", "#9CA3AF")
_DARK = ("#14171C", "#E5E7EB", "#AEB4BE", "#2B3038", "#6B7280")

REFERENCE, HOLLOW, WHISKER = "reference", "hollow", "whisker"  # style names


def themes() -> dict[str, dict[str, Any]]:
    """Return the configurations `light` and `dark` for vegaEmbed."""
    return {"light": _theme(*_LIGHT, dark=False), "dark": _theme(*_DARK, dark=True)}


def _theme(page: str, text: str, subdued: str, grid: str, axis: str, *, dark: bool) -> dict[str, Any]:
    def colour(look: Any) -> str:
        return look.dark if dark else look.colour

    return {
        "background": "transparent",
        "axis": {
            "labelColor": subdued,
            "titleColor": subdued,
            "gridColor": grid,
            "domainColor": axis,
            "tickColor": axis,
        },
        "legend": {"labelColor": text, "titleColor": subdued},
        "header": {"labelColor": text, "titleColor": subdued},
        "title": {"color": text, "subtitleColor": subdued},
        "text": {"color": subdued},
        "range": {"category": [*(colour(look) for look in LOOKS), colour(UNNAMED)]},
        "style": {
            REFERENCE: {"color": colour(IDEAL)},
            f"{REFERENCE}-text": {"fill": subdued},
            HOLLOW: {"color": page},
            WHISKER: {"color": text},
        },
    }
