"""Gives each line of text in an SVG its width, so that a viewer without the font squeezes its own and cuts none."""

from __future__ import annotations

import html
import re

# Widths of ' ' to '~' in thousandths of the font size: Helvetica's (Adobe's AFM file), which Liberation Sans has too.
_ASCII = (
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),
    *(*[556] * 10, 278, 278, 584, 584, 584, 556),
    *(1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778),
    *(667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556),
    *(333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556),
    *(556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584),
)
_OTHERS = {"×": 584, "−": 584, "±": 584, "·": 333, "…": 1000, "—": 1000}
_USUAL = 556  # digits, most small letters, and the en dash
_TEXT = re.compile(r'<text\b[^>]*\bfont-size="([\d.]+)px"[^>]*>.*?</text>', re.DOTALL)
_RUN = re.compile(r"<(text|tspan)\b([^>]*)>([^<]+)(?=</)")  # a line


def width_of(text: str, font_size: float) -> float:
    """Return the width of a line in the unit of the font's size."""
    widths = (_ASCII[ord(c) - 32] if " " <= c <= "~" else _OTHERS.get(c, _USUAL) for c in text)
    return sum(widths) * font_size / 1000


def with_widths(svg: str) -> str:
    """Return the SVG with a textLength for each line of text."""

    def sized(found: re.Match[str]) -> str:
        size = float(found[1])

        def run(line: re.Match[str]) -> str:
            width = width_of(html.unescape(line[3]), size)
            return f'<{line[1]}{line[2]} textLength="{width:.2f}" lengthAdjust="spacingAndGlyphs">{line[3]}'

        return _RUN.sub(run, found[0])

    return _TEXT.sub(sized, svg)
