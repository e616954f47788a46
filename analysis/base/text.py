"""Formats numbers and names for people. Missing or non-finite values become a dash."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

DASH = "–"


def printable(text: str) -> str:
    """Replace every character that a terminal or a markup parser might interpret by U+FFFD.

    Names and log lines come from other programs and may contain terminal escapes, bidirectional overrides, or lone
    surrogates, which cannot be written to a file.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def text_or_none(value: Any) -> str | None:
    """Convert any value from a file to printable text; None stays None."""
    return None if value is None else printable(str(value))


# Replacements for characters that the terminal's encoding lacks; all others become '?'.
SUBSTITUTES = {
    **dict.fromkeys("–−—", "-"),
    "█": "#",
    "▓": "=",
    "░": ".",
    "│": "|",
    "…": ".",
    "µ": "u",
    "×": "x",
    "±": "~",
    "≤": "<",
    "≥": ">",
}


def encodable(stream: TextIO) -> None:
    """Make the stream write substitutes for characters that its encoding lacks instead of raising."""

    def substitute(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(SUBSTITUTES.get(c, "?") for c in error.object[error.start : error.end]), error.end

    if hasattr(stream, "reconfigure"):
        codecs.register_error("analysis.substitute", substitute)
        stream.reconfigure(errors="analysis.substitute")


def shortened(text: str, length: int) -> str:
    """Cut the text to `length` characters, ending in an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def number(value: float | None, digits: int = 3) -> str:
    """Format with `digits` significant digits; from 1,000 on as a whole number with separators."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def scientific(value: float | None) -> str:
    """Format a small number, such as a difference that should be zero: '2.3e-05', '0'."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞"
    return f"{value:.1e}" if value else "0"


def count(value: float | None) -> str:
    """Format a whole number with separators."""
    return DASH if value is None or not math.isfinite(value) else f"{value:,.0f}"


def percent(fraction: float | None, digits: int = 0) -> str:
    """Format 0.953 as '95 %'."""
    return DASH if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{digits}f} %"


def tenths(fraction: float | None) -> str:
    """Format 0.953 as '95.3 %'."""
    return percent(fraction, 1)


def probability_text(p: float) -> str:
    """Format 0.0123 as '= 0.012', smaller values as '< 0.001'."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def times(ratio: float | None) -> str:
    """Format 3.8 as '3.80×'."""
    return DASH if ratio is None or not math.isfinite(ratio) else number(ratio) + "×"


def span(low: float | None, high: float | None, show=number) -> str:
    """Format the range from `low` to `high` with `show`, writing the unit once."""
    first, last = show(low), show(high)
    if DASH in (first, last):
        return DASH
    for unit in (" %", "×", " s", " ms", " J", " kJ", " MJ"):
        if first.endswith(unit) and last.endswith(unit):
            first = first.removesuffix(unit)
    separator = " to " if first.startswith("-") or last.startswith("-") else DASH
    return f"{first}{separator}{last}"


def duration(seconds: float | None) -> str:
    """Format a duration with its unit, in the scale that reads best."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(seconds) * scale >= 1 or unit == "µs":
            return f"{number(seconds * scale)} {unit}"
    raise AssertionError("the last unit takes everything")


def energy(joules: float | None) -> str:
    """Format joules in the largest unit of which there is at least one."""
    if joules is None or not math.isfinite(joules):
        return DASH
    for scale, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if abs(joules) >= scale:
            return f"{number(joules / scale)} {unit}"
    return f"{number(joules)} J"


def size(n_bytes: float | None) -> str:
    """Format bytes in the largest binary unit of which there is at least one."""
    if n_bytes is None or not math.isfinite(n_bytes):
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024 or unit == "GiB":
            return f"{n_bytes:,.0f} B" if unit == "B" else f"{number(n_bytes)} {unit}"
        n_bytes /= 1024
    raise AssertionError("the last unit takes everything")


def moment(unix_seconds: float | None) -> str:
    """Format a point in time in UTC, so that a report reads the same everywhere."""
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        return DASH


def listed(texts: Iterable[str], last: str) -> str:
    """Join as 'a', 'a and b', 'a, b and c', with `last` for 'and'."""
    *former, final = texts
    return f"{', '.join(former)} {last} {final}" if former else final


def versions_text(documents: Iterable[Mapping[str, str]]) -> str:
    """Format all versions that occur, by name: 'nccl 2.27, torch 2.12.1 / 2.13.0'."""
    versions: dict[str, set[str]] = {}
    for document in documents:
        for name, version in document.items():
            versions.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' / '.join(sorted(versions[name]))}" for name in sorted(versions))


def gpus_text(gpus: int, device: str | None) -> str:
    """Format as '1 GPU', '4 GPUs'; on CPUs as '4 CPU ranks'."""
    unit = "CPU rank" if device == "cpu" else "GPU"
    return f"{gpus} {unit}" if gpus == 1 else f"{gpus} {unit}s"


def hours_unit(device: str | None) -> str:
    """Return 'GPU-hours', or 'rank-hours' on CPUs."""
    return "rank-hours" if device == "cpu" else "GPU-hours"


def unit(device: str | None) -> str:
    """Return 'GPUs', or 'CPU ranks' on CPUs."""
    return "CPU ranks" if device == "cpu" else "GPUs"
