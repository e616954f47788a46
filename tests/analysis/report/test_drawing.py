"""Figures are rendered beside the process that needs them, and are the same as without."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for
from project import PROJECT

from analysis.report.print import drawing
from analysis.report.print.drawing import FORMATS, begin, beside, end_processes, rendered

WIDTH = 85.0  # mm


def spec_of(value: float) -> dict[str, Any]:
    """Return a figure with lines and areas that show through."""
    points = [{"x": 0, "y": value}, {"x": 1, "y": value / 2}]
    axes = {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}}
    layers = [
        {"mark": {"type": "line", "opacity": 0.5}},
        {"mark": {"type": "area", "opacity": 0.25}},
        {"mark": {"type": "bar", "opacity": 0.75, "stroke": "black"}},
        {"mark": {"type": "rule", "strokeOpacity": 0.4, "opacity": 0.5}},
    ]
    one_font = {"axis": {"titleFontWeight": "normal"}}  # as in the report
    spec = {"data": {"values": points}, "encoding": axes, "layer": layers, "config": one_font}
    return {**spec, "width": 200, "height": 100}


def renderers_of(pid: int) -> set[int]:
    """Return the processes that render for a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()}


@pytest.fixture
def _two_cores() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("with one core, nothing is rendered beside")


@pytest.mark.usefixtures("_two_cores")
def test_what_is_rendered_beside_is_what_is_rendered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [spec_of(value) for value in (1.0, 2.0, 3.0)]
    here = [rendered(spec, FORMATS, WIDTH) for spec in specs]
    drawing.drawing.cache_clear()
    with beside():
        for spec in specs:
            begin(spec, WIDTH)
        monkeypatch.setattr(drawing, "_in_format", None)  # not rendered here
        assert [rendered(spec, FORMATS, WIDTH) for spec in specs] == here
        end_processes()
        assert [rendered(spec, FORMATS, WIDTH) for spec in specs] == here


@pytest.mark.usefixtures("_two_cores")
def test_figures_are_drawn_here_if_the_processes_die() -> None:
    spec = spec_of(4.0)
    with beside():
        begin(spec, WIDTH)
        for pid in renderers_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        begun = list(drawing._begun.values())
        svg = rendered(spec, ("svg",), WIDTH)
        assert drawing.drawing(json.dumps(spec_of(5.0)))
    assert any(isinstance(future.exception(), BrokenProcessPool) for future in begun)
    assert svg == rendered(spec, ("svg",), WIDTH)


@pytest.mark.usefixtures("_two_cores")
@pytest.mark.parametrize("free", [1, 8, 10])
def test_figures_are_drawn_here_if_no_process_can_be_started(free: int) -> None:
    """As at a limit of processes, which root does not have. free: file descriptors, too few for pool or process."""
    spec, limits = spec_of(7.0), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(first := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + free, limits[1]))
    try:
        context = beside()
        context.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    try:
        assert drawing._pool is None
        begin(spec, WIDTH)
        assert rendered(spec, ("png",), WIDTH)
    finally:
        context.__exit__(None, None, None)


@pytest.mark.usefixtures("_two_cores")
def test_the_processes_end_with_one_that_is_killed() -> None:
    code = (
        "import time\nfrom analysis.report.print.drawing import beside\n"
        "with beside():\n    print('ready', flush=True)\n    time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    wait_for(lambda: bool(renderers_of(parent.pid)))
    children = renderers_of(parent.pid)
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_one_paint_has_its_own_opacity() -> None:
    """A PDF viewer composes a shape with an opacity on a page of its own."""
    svg = rendered(spec_of(6.0), ("svg",), WIDTH)["svg"].decode()
    shapes = re.findall(r'<(?:path|line|rect) [^>]*\bopacity="0\.[^>]*>', svg)
    assert sum(' stroke-opacity="0.5"' in shape for shape in shapes) == 1
    assert sum(' fill-opacity="0.25"' in shape for shape in shapes) == 1
    both = [shape for shape in shapes if ' opacity="' in shape]
    assert len(both) == 4  # two bars, with an outline; two rules, whose two opacities multiply
    assert all(' opacity="0.75"' in shape or ' stroke-opacity="0.4"' in shape for shape in both)
