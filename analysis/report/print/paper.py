"""The paper that figures are made for: --width-mm and --font-pt."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass

from analysis.base.errors import StudyError
from analysis.base.text import printable

MM, PT = 96 / 25.4, 96 / 72  # pixels, as CSS and SVG have them
CHARACTER = 0.5  # of the font's size: the mean width of a letter
PAGE_TO_PAPER = 0.65  # height of axes with text of STANDARD_PT by that of the page's drawing
STANDARD_PT = 7.5
WIDTHS_MM, FONTS_PT = (50.0, 300.0), (5.0, 24.0)


@dataclass(frozen=True)
class Paper:
    """width_mm: of one column. font_pt: of all text in a figure."""

    width_mm: float = 85.0
    font_pt: float = STANDARD_PT

    @property
    def wide_mm(self) -> float:
        """Of two columns."""
        return 2 * self.width_mm + 5

    @property
    def font(self) -> float:
        """In pixels."""
        return self.font_pt * PT

    def height(self, of_page: float) -> float:
        """Of a figure's axes in pixels, from that of the page's drawing."""
        return round(of_page * PAGE_TO_PAPER * self.font_pt / STANDARD_PT)

    def wrapped(self, text: str, width_mm: float | None = None, beside: float = 1) -> list[str]:
        """As lines of a figure. beside: what is not for text, such as a symbol, in heights of the font."""
        return textwrap.wrap(printable(text), max(12, self.letters(width_mm, beside)))

    def letters(self, width_mm: float | None = None, beside: float = 1) -> int:
        """Of a line."""
        return int(((width_mm or self.width_mm) * MM / self.font - beside) / CHARACTER)


def declare_paper(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--width-mm", type=float, default=Paper.width_mm, metavar="MM", help="width of a figure (default: %(default)g)"
    )
    parser.add_argument(
        "--font-pt", type=float, default=Paper.font_pt, metavar="PT", help="size of its text (default: %(default)g)"
    )


def paper_of(options: argparse.Namespace) -> Paper:
    """Raises StudyError for a size that no figure can have."""
    for option, value, (low, high) in (
        ("--width-mm", options.width_mm, WIDTHS_MM),
        ("--font-pt", options.font_pt, FONTS_PT),
    ):
        if not low <= value <= high:
            raise StudyError(f"{option} {value:g}: give a number from {low:g} to {high:g}")
    return Paper(options.width_mm, options.font_pt)
