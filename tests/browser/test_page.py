"""report.html in a real browser, used like a person does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import written
from PIL import Image, ImageStat

from analysis.report.html import folding

pytestmark = pytest.mark.browser
POINTS = "#table-points tbody tr:not(.series):visible"


def column(page: Any, table: str, label: str) -> list[str]:
    cells = page.locator(f"#table-{table} tbody tr:not(.series):visible td[data-label='{label}']")
    return [text.split("\n")[0].strip() for text in cells.all_inner_texts()]


def test_every_plot_is_drawn_and_a_point_says_what_it_is(page: Any) -> None:
    n = page.locator(".vega").count()
    assert n >= 5
    assert page.locator(".vega svg").count() == n
    point = page.locator("#chart-speedup svg .role-mark path[aria-roledescription]").last
    if not point.count():
        point = page.locator("#chart-speedup svg .mark-symbol path").last
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#vg-tooltip-element.visible")
    said = page.locator("#vg-tooltip-element").inner_text()
    assert re.search(r"[0-9]+ GPUs?", said)
    assert "95 % interval" in said


def test_one_choice_filters_tables_lists_and_plots_and_escape_clears_it(page: Any) -> None:
    symbols = "#chart-speedup svg .mark-symbol path"
    every, drawn = page.locator(POINTS).count(), page.locator(symbols).count()
    page.select_option("select[name=framework]", "jax")
    page.wait_for_function(f"document.querySelectorAll('{symbols}').length < {drawn}")
    assert page.locator(POINTS).count() == 5
    assert page.locator("#table-points tr.series:visible").count() == 1
    assert page.locator(".choose output").inner_text() == f"5 of {every} points"
    page.locator("#series summary").click()
    page.wait_for_function("document.querySelectorAll('.answers li:not([hidden])').length === 1")
    page.locator("#series summary").click()
    page.keyboard.press("Escape")
    page.wait_for_function(f"document.querySelectorAll('{symbols}').length === {drawn}")
    assert page.locator(POINTS).count() == every
    page.fill("input[name=words]", "FSDP 1,536")
    page.wait_for_function("document.querySelector('.choose output').textContent.startsWith('1 of')")
    assert page.locator(POINTS).inner_text().startswith("12 GPUs")
    page.fill("input[name=words]", "")
    page.select_option("select[name=status]", "failed")
    page.wait_for_function("document.querySelector('.choose output').textContent.startsWith('1 of')")
    page.locator("#runs > details > summary").click()  # folded parts are filtered when they open
    page.wait_for_function("document.querySelectorAll('#list-others details:not([hidden])').length === 1")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('.choose output').textContent")
    page.locator("#runs > details > summary").click()


def test_a_column_sorts_down_up_and_back(page: Any) -> None:
    before = column(page, "points", "Speedup")
    head = page.locator("#table-points th", has_text="Speedup")
    numbers = [float(text.removesuffix("×")) for text in before if text != "–"]
    for way, expected in (("descending", sorted(numbers, reverse=True)), ("ascending", sorted(numbers))):
        head.get_by_role("button", name="Speedup", exact=True).click()
        assert head.get_attribute("aria-sort") == way
        values = column(page, "points", "Speedup")
        assert [float(text.removesuffix("×")) for text in values if text != "–"] == expected
        assert values[-1] == "–"  # unknown values are last in both directions
    assert "resnet44" in page.locator(f"{POINTS} >> nth=0").inner_text()  # a row names its series
    head.get_by_role("button", name="Speedup", exact=True).click()
    assert head.get_attribute("aria-sort") is None
    assert column(page, "points", "Speedup") == before


def test_theme_follows_the_system_and_a_choice_stays_for_the_session(page: Any) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    label = "getComputedStyle(document.querySelector('#chart-speedup svg .role-axis-label text')).fill"
    dark, dark_label = page.evaluate(ground), page.evaluate(label)
    page.get_by_text("Light", exact=True).click()
    light, light_label = page.evaluate(ground), page.evaluate(label)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    assert dark_label != light_label  # the plots follow without being redrawn
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    assert page.evaluate(ground) == light
    page.get_by_text("System", exact=True).click()
    assert page.evaluate(ground) == dark


def test_everything_can_be_reached_with_the_keyboard(page: Any) -> None:
    focused = "document.activeElement"
    page.evaluate("document.activeElement.blur(), getSelection().removeAllRanges(), scrollTo(0, 0)")
    page.locator(".skip").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.className") == "skip"
    assert page.evaluate(f"{focused}.getBoundingClientRect().left") >= 0
    assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate(f"{focused}.id") == "answers"
    reached = set()
    page.locator("input[name=words]").focus()
    for _ in range(60):
        reached.add(
            page.evaluate(f"({focused}.name || {focused}.getAttribute('class') || {focused}.textContent).trim()")
        )
        page.keyboard.press("Tab")
    assert {"words", "framework", "model", "strategy", "status", "log_x", "log_y", "scroll", "Speedup"} <= reached
    page.locator("#runs > details > summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#table-runs button.opens")
    page.locator("#table-runs button.opens").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    said = page.locator("dialog").inner_text()
    assert "step 60 of 60" in said
    assert "optimizer.lr" in said
    assert "framework" in said.split("Differs from other runs in")[1].split("Last lines")[0]
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate(f"{focused}.className") == "opens"  # focus has returned
    page.locator("#runs > details > summary").click()


def test_running_run_shows_its_output_and_environment(page: Any) -> None:
    page.locator(".counts a").click()  # to the runs without a figure, which unfolds them
    run = page.locator("#list-others details.run", has_text="16gpu").filter(has_text="unfinished")
    run.scroll_into_view_if_needed()
    run.locator("summary").click()
    said = run.inner_text()
    assert "[rank 0] \ufffd[33mwarning\ufffd[0m from rank 0\n[rank 0] still waiting\n[rank 13]" in said
    assert "of ranks 0 and 13 in attempt 1, as its files stood when this page was made" in said
    run.locator("button.opens").click()
    page.wait_for_selector("dialog[open]")
    said = page.locator("dialog").inner_text()
    assert "[rank 13] still waiting" in said
    assert "node9, of node[0-1]" in said
    differs, rest = said.split("Differs from other runs in")[1].split("Last lines of stderr of ranks 0 and 13")
    assert differs.index("strategy") < differs.index("cores") < differs.index("variables.NCCL_IB_DISABLE")
    assert "(not there)" in differs
    assert "optimizer.lr" in rest.split("Environment")[0]
    assert "AMD EPYC 9454" in rest.split("Environment")[1]
    page.keyboard.press("Escape")
    run.locator("summary").click()
    missing = page.locator("#list-others details.run").filter(has_text="missing")
    missing.locator("summary").click()
    missing.locator("button.opens").click()
    page.wait_for_selector("dialog[open]")
    assert "It did not record one." in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    missing.locator("summary").click()
    page.locator("#runs > details > summary").click()


def test_printed_page_is_light_whole_and_without_controls(page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--page')").strip() == "#ffffff"
    assert page.locator(".choose:visible, .theme:visible, .toc:visible").count() == 0
    assert page.locator("details:not([open])").count() == 0
    assert page.locator("#table-runs tbody tr:not(.series):visible").count() == 66
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf().startswith(b"%PDF")
    page.emulate_media(media="screen")


# Words in headings that are broken over several lines without a hyphen.
BROKEN = """[...document.querySelectorAll('thead th')].flatMap((head) => {
  const found = [], texts = document.createTreeWalker(head, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const word of texts.currentNode.textContent.matchAll(/[^\\s-]+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1) found.push(`${head.closest("table").id}: ${word[0]}`);
    }
  return found;
})"""


def test_headings_of_wide_tables_break_between_words_on_paper(report: Path, opened: Callable[..., Any]) -> None:
    page = opened(report, width=688)  # A4 within our margins: 182 mm
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    columns = page.evaluate("[...document.querySelectorAll('table')].map((t) => t.querySelectorAll('thead th').length)")
    assert max(columns) == 11
    assert page.evaluate(BROKEN) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 688


def test_page_can_be_read_without_javascript(report: Path, opened: Callable[..., Any]) -> None:
    page = opened(report, java_script_enabled=False)
    assert page.locator("#table-points tbody tr:not(.series)").first.is_visible()
    assert "12,993" in page.locator("#table-points").inner_text()
    assert page.locator(".chart noscript").first.is_visible()
    assert page.locator(".choose").is_hidden()
    assert page.locator(".theme").is_hidden()
    text = page.locator("main").text_content()
    assert "rank 3 ended with exit code 1" in text
    assert text.index("Without a figure") < text.index("Configuration and environment")


@pytest.mark.parametrize("width", [1280, 400])
def test_screenshots_are_of_a_page_and_dark_is_not_light(page: Any, tmp_path: Path, width: int) -> None:
    lightness = {}
    page.set_viewport_size({"width": width, "height": 900})
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        path = tmp_path / f"{width}-{theme}.png"
        page.screenshot(path=str(path), full_page=True, clip={"x": 0, "y": 0, "width": width, "height": 4000})
        picture = Image.open(path).convert("L")
        assert picture.width == width
        assert picture.height == 4000
        assert ImageStat.Stat(picture).stddev[0] > 10  # a blank page has none
        lightness[theme] = ImageStat.Stat(picture).mean[0]
    assert lightness["light"] > 220
    assert lightness["dark"] < 60


def test_hostile_names_and_logs_are_words_in_the_page(tmp_path: Path, opened: Callable[..., Any]) -> None:
    from study_builder import Logs, StudyBuilder, spec_of

    from harness.core.spec import ClusterSpec

    attack = "<script>window.broken=1<!--<img src=x onerror='window.broken=2'>\"'`${window.broken=3}{{7*7}}"
    closing = f"</script></title></style></pre></dialog>-->]]>{attack}"
    study = StudyBuilder(tmp_path / "study", closing + "\u202egnp.exe\x1b[31m\x00" + "w" * 3000)
    tail = [closing, "\x1b]0;title\x07 \ud800 \x00 \u202e", closing + "x" * 100_000]
    cluster = ClusterSpec(closing, "cuda", 1)
    for gpus in (1, 2):
        spec = spec_of(gpus, model=attack, framework="_" + attack, cluster=cluster)
        study.add(spec, Logs(device_name=closing, versions={closing: closing}), result={"stderr_tail": tail})
    failed = {"status": "failed", "reason": closing, "stderr_tail": tail}
    study.add(spec_of(4, model=attack, strategy=attack), None, result=failed)
    denied = "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('denied'); }})"
    page = opened(written(tmp_path, study.folder), width=400, script=denied)
    page.get_by_text("Dark", exact=True).click()  # works without storage too
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert closing in page.locator("h1").inner_text()
    assert page.locator("main img").count() == 0
    page.locator("#runs > details > summary").click()
    page.locator("#table-runs button.opens").first.click()
    page.wait_for_selector("dialog[open]")
    assert closing in page.locator("dialog pre").inner_text()
    page.keyboard.press("Escape")
    page.locator("#list-others summary").first.click()
    assert closing in page.locator("#list-others pre").first.inner_text()
    page.select_option("select[name=strategy]", attack)
    page.wait_for_function("document.querySelector('.choose output').textContent.startsWith('1 of')")
    page.set_viewport_size({"width": 1280, "height": 900})  # headings are there in a wide window only
    page.locator("#table-points th button[title]").nth(3).click()
    page.set_viewport_size({"width": 400, "height": 900})
    point = page.locator("#chart-speedup svg .mark-symbol path")
    if point.count():
        point.first.hover(force=True)
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert not {"\x1b", "\x00", "\u202e"} & set(page.content())


def test_folded_rows_open_on_demand_and_are_found_by_the_filter(
    report: Path, tmp_path: Path, opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "MOST_INLINE", 8_000)
    page = opened(written(tmp_path, report.parent / "study"))
    page.locator("#table-points").scroll_into_view_if_needed()
    shown = page.locator(POINTS).count()
    foot = page.locator("#table-points").locator("xpath=..").locator("xpath=following-sibling::p[1]")
    foot.wait_for()
    (hidden,) = re.findall(r"([0-9]+) rows are folded", foot.inner_text())
    assert shown + int(hidden) == 27
    foot.get_by_role("button").click()
    page.wait_for_function("document.querySelectorAll('#table-points tbody tr:not(.series)').length === 27")
    assert page.locator(POINTS).count() == 27
    page.fill("input[name=words]", "tensorflow-horovod-resnet44-12gpu")
    page.locator("#runs > details > summary").click()
    page.locator("#table-runs").scroll_into_view_if_needed()
    page.wait_for_function(
        "[...document.querySelectorAll('#table-runs tbody tr:not(.series)')].filter((row) => !row.hidden).length === 3"
    )
