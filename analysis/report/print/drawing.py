"""Renders figures as PDF, SVG and PNG of an exact width, with embedded fonts, in processes beside this one.

vl-convert holds Python's lock while it draws, so a thread would not do. The processes import this module alone.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.process import BaseProcess
from typing import Any

from analysis.report.charts.vega import VEGA_LITE
from analysis.report.print.svg_text import with_widths

FORMATS = ("pdf", "svg", "png")
DOTS_PER_INCH = 300  # of PNG files
MOST_PROCESSES = 2  # each takes 0.1 to 0.3 GB, and they keep up with the rest of the report
ENTRIES = re.compile(rb"(?:^ +/[a-z]+\d+ \d+ 0 R\n)+", re.MULTILINE)  # in a PDF's resource dictionaries
SHAPE = re.compile(r'<(?:path|line|rect) [^>]*? opacity="[^>]*>')
ANY = '{"mark": "point"}'

_pool: ProcessPoolExecutor | None = None
_begun: dict[tuple[str, float], Future[dict[str, bytes]]] = {}


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """Within this context, figures are rendered beside this process, if there are cores for that."""
    global _pool
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)) - 1)
    try:
        if processes > 0:
            context = multiprocessing.get_context("spawn")
            _pool = ProcessPoolExecutor(processes, context, initializer=_depend_on_parent)
            for _ in range(processes):
                _pool.submit(_drawn, ANY)  # starting the JavaScript takes longer than a figure
    except OSError:  # the user may not start more: figures are rendered here
        end_processes()
    try:
        yield
    finally:
        end_processes()
        _begun.clear()


def begin(spec: Mapping[str, Any], width_mm: float) -> None:
    """Begin to render a figure in all formats. Without `beside`, this does nothing."""
    text = json.dumps(spec)
    if _pool is not None and (text, width_mm) not in _begun:
        with contextlib.suppress(BrokenProcessPool):
            _begun[text, width_mm] = _pool.submit(_rendered, text, FORMATS, width_mm)


def end_processes() -> None:
    """End the processes, which frees their memory; what they have rendered is kept until `beside` ends."""
    global _pool
    if _pool is not None:
        _pool.shutdown(cancel_futures=True)
        _pool = None


def rendered(spec: Mapping[str, Any], kinds: Sequence[str], width_mm: float) -> dict[str, bytes]:
    """Render a figure in these of FORMATS. Without dates, so equal studies give equal files."""
    text = json.dumps(spec)
    if begun := _begun.get((text, width_mm)):
        with contextlib.suppress(BrokenProcessPool):  # processes do not work here
            return {kind: begun.result()[kind] for kind in kinds}
    return _rendered(text, kinds, width_mm)


@lru_cache(maxsize=64)  # the same figures go into figures/ and report.pdf
def drawing(spec: str) -> str:
    """Render a spec as SVG, sized in pixels."""
    if _pool is not None:
        with contextlib.suppress(BrokenProcessPool):
            return _pool.submit(_drawn, spec).result()
    return _drawn(spec)


def pixels(svg: str) -> tuple[float, float]:
    """Return width and height of an SVG."""
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    return float(width), float(height)


def _depend_on_parent() -> None:
    """Let a process leave Ctrl-C to its parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "it was spawned"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _rendered(spec: str, kinds: Sequence[str], width_mm: float) -> dict[str, bytes]:
    svg = drawing(spec)
    return {kind: _in_format(kind, svg, width_mm) for kind in kinds}


def _in_format(kind: str, svg: str, width_mm: float) -> bytes:
    import vl_convert

    if kind == "svg":
        return with_widths(_sized(svg, width_mm, "mm")).encode("utf-8")
    svg = _sized(svg, width_mm * 72 / 25.4, "")  # one pixel becomes one point
    if kind == "png":
        return vl_convert.svg_to_png(svg, ppi=DOTS_PER_INCH)
    # vl-convert writes these entries in random order; sorting them in place keeps all byte offsets.
    return ENTRIES.sub(lambda found: b"".join(sorted(found[0].splitlines(True))), vl_convert.svg_to_pdf(svg))


def _drawn(spec: str) -> str:
    import vl_convert

    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
    svg = re.sub(r'<text [^>]*opacity="0">.*?</text>', "", svg)  # labels hidden for lack of space
    return SHAPE.sub(lambda found: _of_its_paint(found[0]), svg)


def _of_its_paint(shape: str) -> str:
    """Return a shape that is only filled, or only a line, with the opacity of its paint, which looks the same: one with
    an opacity of its own is drawn on a whole canvas first, which made PDFs five times as large."""
    paints = [paint for paint in ("fill", "stroke") if f' {paint}="' in shape and f' {paint}="none"' not in shape]
    if len(paints) != 1 or f" {paints[0]}-opacity=" in shape:
        return shape
    return shape.replace(" opacity=", f" {paints[0]}-opacity=")


def _sized(svg: str, width: float, unit: str) -> str:
    """Set the exact width, which Vega rounds to whole pixels."""
    was, height = pixels(svg)
    size = f'width="{width:.6f}{unit}" height="{height * width / was:.6f}{unit}"'
    return re.sub(r'width="[\d.]+" height="[\d.]+"', size, svg, count=1)
