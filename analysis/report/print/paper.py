"""Size of the figures and of their text: --width-mm and --font-pt."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass

from analysis.base.errors import StudyError
from analysis.base.text import printable

MM, PT = 96 / 25.4, 96 / 72  # in pixels, as in CSS and SVG
CHARACTER = 0.5  # mean width of a letter, relative to the font size
PAGE_TO_PAPER = 0.65  # height of a figure with STANDARD_PT text, relative to the chart on the page
STANDARD_PT = 7.5
WIDTHS_MM, FONTS_PT = (50.0, 300.0), (5.0, 24.0)


@dataclass(frozen=True)
class Paper:
    """width_mm: width of one column. font_pt: size of all text in a figure."""

    width_mm: float = 85.0
    font_pt: float = STANDARD_PT

    @property
    def wide_mm(self) -> float:
        """Width of two columns in mm."""
        return 2 * self.width_mm + 5

    @property
    def font(self) -> float:
        """Font size in pixels."""
        return self.font_pt * PT

    def height(self, of_page: float) -> float:
        """Return the height of a plot in pixels, from its height on the page."""
        return round(of_page * PAGE_TO_PAPER * self.font_pt / STANDARD_PT)

    def wrapped(self, text: str, width_mm: float | None = None, beside: float = 1) -> list[str]:
        """Break text into lines that fit the figure. beside: width of other elements, in font sizes."""
        return textwrap.wrap(printable(text), max(12, self.letters(width_mm, beside)))

    def letters(self, width_mm: float | None = None, beside: float = 1) -> int:
        """Return the number of letters that fit on a line."""
        return int(((width_mm or self.width_mm) * MM / self.font - beside) / CHARACTER)


def declare_paper(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--width-mm", type=float, default=Paper.width_mm, metavar="MM", help="width of a figure (default: %(default)g)"
    )
    parser.add_argument(
        "--font-pt", type=float, default=Paper.font_pt, metavar="PT", help="size of its text (default: %(default)g)"
    )


def paper_of(options: argparse.Namespace) -> Paper:
    """Return the paper size. Raises StudyError if out of range."""
    for option, value, (low, high) in (
        ("--width-mm", options.width_mm, WIDTHS_MM),
        ("--font-pt", options.font_pt, FONTS_PT),
    ):
        if not low <= value <= high:
            raise StudyError(f"{option} {value:g}: give a number from {low:g} to {high:g}")
    return Paper(options.width_mm, options.font_pt)
