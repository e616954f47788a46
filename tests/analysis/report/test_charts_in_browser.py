"""The charts in a real browser: no warnings, tooltips, controls, and names that contain markup."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from study_builder import StudyBuilder
from test_charts import drawn, some_series

from analysis.report.charts.theme import themes
from analysis.report.charts.vega import vega_script

HOSTILE = "<img src=x onerror=window.hit=1>\"'&$\\frac{"
PAGE = """<!doctype html><meta charset="utf-8"><title>drawings</title>
<style>body {{ width: 360px }} .vega {{ width: 360px }}</style>
<script>{script}</script>
{places}
<script>
window.views = {{}};
window.drawn = (async () => {{
  for (const [name, spec] of Object.entries({specs})) {{
    const options = {{ mode: "vega-lite", renderer: "svg", actions: false, config: {config} }};
    views[name] = (await vegaEmbed("#" + name, spec, options)).view;
  }}
}})();
</script>"""

SET = "views.speedup.{}.runAsync().then(() => null)"

pytestmark = pytest.mark.browser


@pytest.fixture
def page(study: StudyBuilder, tmp_path: Path) -> Iterator[Any]:
    """A page 360 pixels wide with all charts of a study with hostile names; console messages are collected."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: sbatch/system-packages.sh browser installs it")
    some_series(study, strategy="allreduce")
    some_series(study, strategy=HOSTILE, model=HOSTILE)
    study.completed(2, strategy="alone")
    charts = drawn(study)[1]
    text = PAGE.format(
        script=vega_script(),
        places="".join(f'<div class="vega" id="{name}"></div>' for name in charts),
        specs=json.dumps({name: chart.spec for name, chart in charts.items()}).replace("</", "<\\/"),
        config=json.dumps(themes()["dark"]),
    )
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 400, "height": 900})
        said: list[str] = []
        opened.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        opened.on("pageerror", lambda error: said.append(f"error: {error}"))
        asked: list[str] = []
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto((tmp_path / "page.html").as_uri())
        opened.evaluate("window.drawn")
        yield opened, charts, said, asked
        browser.close()


def test_drawings_answer_to_mouse_keyboard_and_signals(page: Any) -> None:
    opened, charts, said, asked = page
    for name in charts:
        box = opened.locator(f"#{name} svg").bounding_box()
        assert 200 < box["width"] <= 362, (name, box)
    # A filter leaves only its series; the axes can be switched.
    shown = "document.querySelectorAll('#speedup .mark-symbol.role-mark path[aria-label]').length"
    everything = opened.evaluate(shown)
    opened.evaluate(SET.format("signal('strategy', 'allreduce').signal('log_x', true).signal('log_y', true)"))
    assert 0 < opened.evaluate(shown) < everything
    opened.evaluate(SET.format("signal('strategy', '')"))
    assert opened.evaluate(shown) == everything
    # The tooltip has the full name as text.
    place = "#speedup .mark-symbol.role-mark path"
    opened.locator(place).last.scroll_into_view_if_needed()
    opened.locator(place).last.hover(force=True)
    tooltip = opened.locator("#vg-tooltip-element")
    tooltip.wait_for(state="visible")
    for word in ("95 % interval", "relative to", "runs", "batch", "warnings"):
        assert word in tooltip.inner_text()
    hostile = opened.locator(place).nth(
        opened.evaluate(
            f"[...document.querySelectorAll({place!r})].findLastIndex("
            "(path) => path.__data__.datum.strategy !== 'allreduce' && path.__data__.datum.model !== 'resnet44')"
        )
    )
    hostile.hover(force=True)
    assert HOSTILE.split('"')[0] in tooltip.inner_text()
    assert opened.locator("#vg-tooltip-element img").count() == 0
    # The legend can be operated without a mouse.
    entries = opened.locator("#speedup .role-legend-label text")
    entries.first.focus()
    opened.keyboard.press("Enter")
    assert len(opened.evaluate("views.speedup.data('picked_store')")) == 1
    assert opened.evaluate("window.hit") is None
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert said == []
