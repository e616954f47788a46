"""How report.html reads: answers first, the rest folded, everything within the window, definitions at their terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import written

from analysis.read.imported import read_imported
from analysis.report.findings import findings_of
from analysis.report.html.render import render_report
from benchmarks.studies import unpack

pytestmark = pytest.mark.browser

WIDTHS = (400, 800, 1280, 1920)
HEIGHT = "document.documentElement.scrollHeight"
FOLD_ALL = "(open) => document.querySelectorAll('details').forEach((fold) => (fold.open = open))"
FOCUSED = "document.activeElement"
# Elements beyond the window, and text wider than the element that clips it.
BEYOND = """() => [...document.querySelectorAll('body *')]
  .filter((element) => !element.closest('script, .skip, svg, pre, legend, .theme input, [hidden]'))
  .filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width && (box.right > innerWidth + 1 || box.left < -1);
  })
  .map((element) => `${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`)"""
CUT = """() => [...document.querySelectorAll('.scroll, .vega')]
  .filter((element) => element.clientWidth && element.scrollWidth > element.clientWidth + 1)
  .map((element) => `${(element.querySelector('table') ?? element).id} ${element.scrollWidth}`)"""
# Columns of tables whose cells are all empty or, with several rows, all the same.
TELLS_NOTHING = """() => [...document.querySelectorAll('table.rows')].flatMap((table) => {
  const rows = [...table.querySelectorAll('tbody tr:not(.series)')];
  return [...table.querySelectorAll('thead th')].flatMap((head, i) => {
    const texts = new Set(rows.map((row) => row.cells[i].textContent.trim()));
    const empty = texts.size === 1 && (texts.has('') || texts.has('–'));
    return i && (empty || (rows.length > 1 && texts.size === 1)) ? [`${table.id} ${head.textContent}`] : [];
  });
})"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, opened: Callable[..., Any]) -> Any:
    """The page of a recorded study of 48 runs."""
    folder = tmp_path_factory.mktemp("recorded")
    return opened(written(folder, unpack("frameworks_v100", folder)))


def test_page_begins_with_answers_two_plots_and_a_table_and_folds_the_rest(recorded: Any) -> None:
    questions = recorded.locator("#answers dt").all_inner_texts()
    assert [text.split()[0] for text in questions] == ["How", "What", "Which", "What"]
    answers = recorded.locator("#answers dd").all_inner_texts()
    assert all(len(text) > 20 for text in answers)
    assert recorded.locator(".vega:visible").count() == 2
    assert recorded.locator("table:visible").count() == 1
    tops = "(names) => names.map((name) => document.querySelector(name).getBoundingClientRect().top)"
    order = recorded.evaluate(tops, ["#answers", "#chart-speedup", "#table-points", "#series", "#runs", "#terms"])
    assert order == sorted(order)
    folds = recorded.locator("details.part")
    assert folds.count() > 12
    assert recorded.locator("details.part[open]").count() == 0
    for text in recorded.locator("details.part > summary .gist").all_inner_texts():
        assert len(text) > 5  # says what is in it
    # The page had 25,700 px, with two runs 10,600.
    assert recorded.evaluate(HEIGHT) < 4_000


SERIES_SHOWN = "#table-points tr.series:visible .label"
NAMED_IN_PLOT = "#chart-speedup .role-legend-label text"


def test_many_series_begin_with_the_best_five_and_show_all_on_demand(recorded: Any) -> None:
    assert recorded.locator("#scaling .fewer").inner_text().startswith("The 5 with the largest speedup of 8 series")
    best = recorded.locator(SERIES_SHOWN).all_inner_texts()
    assert len(best) == 5
    assert sorted(recorded.locator(NAMED_IN_PLOT).all_text_contents()) == sorted(best)
    assert "MXNet KVStore" in best
    every = recorded.get_by_role("checkbox", name="all 8 series")
    every.focus()
    recorded.keyboard.press("Space")
    recorded.wait_for_function("document.querySelectorAll('#chart-speedup .role-legend-label text').length === 8")
    names = recorded.locator(SERIES_SHOWN).all_inner_texts()
    assert len(names) == 8
    # One name per series: in table, plot, and list of answers.
    assert set(recorded.locator(NAMED_IN_PLOT).all_text_contents()) == set(names)
    assert {text.strip() for text in recorded.locator("#series .answer b").all_text_contents()} == set(names)
    recorded.keyboard.press("Space")
    assert recorded.locator(SERIES_SHOWN).count() == 5
    recorded.fill("input[name=words]", "pytorch ddp")  # a filter finds the others too
    recorded.wait_for_function("document.querySelector('.choose output').textContent === '2 of 16 points'")
    assert recorded.locator(SERIES_SHOWN).all_inner_texts() == ["PyTorch DDP"]
    recorded.keyboard.press("Escape")
    recorded.wait_for_function("document.documentElement.matches('.best')")
    recorded.emulate_media(media="print")
    assert recorded.locator(SERIES_SHOWN).count() == 8
    recorded.emulate_media(media="screen")


def test_legend_stands_beside_the_lines_where_there_is_room(recorded: Any) -> None:
    places = """() => {
      const boxes = (selector) =>
        [...document.querySelectorAll(`#chart-efficiency ${selector}`)].map((e) => e.getBoundingClientRect());
      const lines = boxes('.mark-line path');
      const names = boxes('.role-legend-label text');
      return [Math.max(...lines.map((box) => box.right)), Math.min(...names.map((box) => box.left))];
    }"""
    for width, beside in ((1920, "yes"), (400, "")):
        recorded.set_viewport_size({"width": width, "height": 900})
        recorded.wait_for_function(f"document.querySelector('#chart-efficiency .vega').dataset.beside === '{beside}'")
        recorded.wait_for_timeout(500)
        lines, legend = recorded.evaluate(places)
        assert (legend > lines) is (beside == "yes"), width
    # The entries are in the order in which the lines end.
    values = "() => document.querySelectorAll('#table-points td[data-label=Efficiency]').length"
    assert recorded.evaluate(values) == 16
    assert recorded.locator("#chart-efficiency .role-legend-label text").first.text_content() == "MXNet KVStore"
    recorded.set_viewport_size({"width": 1280, "height": 900})
    recorded.wait_for_timeout(500)


def test_names_wrap_in_the_legend_of_a_narrow_window(tmp_path: Path, opened: Callable[..., Any]) -> None:
    table = tmp_path / "long.csv"
    names = ["fully sharded data parallel with checkpointed activations", "one-name-of-many-letters-" + "x" * 45]
    rows = [f"{gpus},{300 * gpus},{64 * gpus},{name}" for name in names for gpus in (1, 2)]
    table.write_text("\n".join(["gpus,samples_per_second,batch,framework", *rows]))
    path = tmp_path / "report.html"
    path.write_text(render_report(findings_of(read_imported(table))), encoding="utf-8")
    page = opened(path, width=400)
    legend = page.locator("#chart-speedup .role-legend-label text")
    assert sorted("".join(text.split()) for text in legend.all_text_contents()) == ["".join(n.split()) for n in names]
    assert page.locator("#chart-speedup .role-legend-label tspan").count() > 2
    rights = [box.evaluate("(text) => text.getBoundingClientRect().right") for box in legend.all()]
    assert max(rights) <= 400


def test_points_are_short_in_a_narrow_window(recorded: Any) -> None:
    recorded.set_viewport_size({"width": 400, "height": 900})
    heads = [
        text.split("\n")[0].rstrip("?") for text in recorded.locator("#table-points thead th:visible").all_inner_texts()
    ]
    assert heads == ["CPU ranks", "Samples/s", "Speedup", "Efficiency"]
    table = "document.querySelector('#table-points').offsetHeight"
    assert recorded.evaluate(table) < 1_000
    assert recorded.evaluate(HEIGHT) < 5_000  # of 7,361 with cards of every column
    assert recorded.locator("#table-points .mark:visible", has_text="drift").count() > 0  # no warning is left out
    recorded.get_by_label("every column").check()
    assert recorded.locator("#table-points td[data-label=Goodput]").first.is_visible()
    assert recorded.evaluate("document.documentElement.scrollWidth") <= 400
    recorded.get_by_label("every column").uncheck()
    recorded.set_viewport_size({"width": 1280, "height": 900})


def test_two_runs_make_a_short_page(tmp_path: Path, opened: Callable[..., Any]) -> None:
    from study_builder import StudyBuilder

    study = StudyBuilder(tmp_path / "study")
    study.completed(1)
    study.completed(2, seconds=1.25)
    assert opened(written(tmp_path, study.folder)).evaluate(HEIGHT) < 2_600


def test_no_column_is_empty_or_the_same_in_every_row(recorded: Any, page: Any) -> None:
    assert recorded.evaluate(TELLS_NOTHING) == []
    assert page.evaluate(TELLS_NOTHING) == []
    said = recorded.locator("#scaling .same").inner_text()
    assert said.startswith("In every row: ")
    assert "Batch per rank: 16" in said
    recorded.fill("input[name=words]", "runs: 3")  # what is said above the table is found as well
    recorded.wait_for_function("document.querySelector('.choose output').textContent === '16 of 16 points'")
    recorded.keyboard.press("Escape")


@pytest.mark.parametrize("name", ["recorded", "page"])
def test_nothing_is_cut_and_the_page_does_not_scroll_sideways(request: pytest.FixtureRequest, name: str) -> None:
    page = request.getfixturevalue(name)
    page.evaluate(FOLD_ALL, True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)  # plots follow the window
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert (width, page.evaluate(BEYOND)) == (width, [])
        assert (width, page.evaluate(CUT)) == (width, [])
    tables = "Math.max(...[...document.querySelectorAll('table')].map((table) => table.offsetWidth))"
    assert page.evaluate(tables) > 1_100  # a wide window is used
    page.set_viewport_size({"width": 1280, "height": 900})
    page.evaluate(FOLD_ALL, False)


def test_rows_are_cards_with_named_values_in_a_narrow_window(page: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    page.get_by_label("every column").check()
    cell = page.locator("#table-points td[data-label=Speedup]").first
    assert page.locator("#table-points thead").is_hidden()
    assert page.evaluate("(cell) => getComputedStyle(cell, '::before').content", cell.element_handle()) == '"Speedup"'
    page.get_by_label("every column").uncheck()
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.locator("#table-points thead").is_visible()


def test_notes_are_wrapped_and_at_the_left(page: Any) -> None:
    page.evaluate(FOLD_ALL, True)
    styles = """[...document.querySelectorAll('td.words')].map((cell) => {
      const style = getComputedStyle(cell);
      return [style.textAlign, style.whiteSpace];
    })"""
    found = page.evaluate(styles)
    assert found
    assert all(style == ["left", "normal"] for style in found)
    page.evaluate(FOLD_ALL, False)


def test_folds_open_and_close_with_the_keyboard_and_have_names(recorded: Any) -> None:
    summary = recorded.locator("#cost summary")
    summary.focus()
    assert recorded.evaluate(f"getComputedStyle({FOCUSED}).outlineStyle") == "solid"
    for key, is_open in (("Enter", True), ("Enter", False), ("Space", True), ("Space", False)):
        recorded.keyboard.press(key)
        assert recorded.locator("#cost details").evaluate("(fold) => fold.open") is is_open
    tree = recorded.locator("main").aria_snapshot()
    assert 'heading "What each size costs" [level=2]' in tree
    assert "Shortest epoch: " in tree
    assert 'region "Points"' in tree
    label = recorded.locator("#chart-speedup .vega").get_attribute("aria-label")
    assert "Vega" not in label
    assert f'img "{label}"' in tree


def test_folded_plot_fills_its_place_when_it_is_opened(recorded: Any) -> None:
    recorded.locator("#throughput summary").click()
    full = """() => {
      const place = document.querySelector('#chart-throughput .vega');
      const svg = place.querySelector('svg');
      return svg && svg.getBoundingClientRect().width > 0.9 * place.clientWidth && place.clientWidth > 300;
    }"""
    recorded.wait_for_function(full)
    recorded.locator("#throughput summary").click()


def test_link_opens_the_fold_that_it_leads_to(page: Any) -> None:
    page.evaluate("location.hash = '#table-cost'")
    page.wait_for_selector("#table-cost", state="visible")
    page.locator("#cost summary").click()
    page.evaluate("location.hash = '#runs'")
    page.wait_for_selector("#list-others", state="visible")
    page.locator("#runs > details > summary").click()


def test_definition_opens_at_its_term_and_closes_with_escape(recorded: Any) -> None:
    box = recorded.locator("#definition")
    mark = recorded.get_by_role("button", name="What is Efficiency?").first
    assert mark.get_attribute("aria-expanded") == "false"
    mark.focus()
    recorded.keyboard.press("Enter")
    assert box.is_visible()
    assert mark.get_attribute("aria-expanded") == "true"
    assert mark.get_attribute("aria-controls") == "definition"
    assert box.inner_text().startswith("Efficiency\nSpeedup divided by the factor of GPUs.")
    boxes = """(mark) => [mark, document.querySelector('#definition')].map((element) => {
      const box = element.getBoundingClientRect();
      return [box.left, box.top, box.right, box.bottom];
    })"""
    (_, above, _, below), (left, top, right, bottom) = recorded.evaluate(boxes, mark.element_handle())
    assert left >= 0
    assert right <= recorded.viewport_size["width"]
    assert top == pytest.approx(below, abs=12) or bottom == pytest.approx(above, abs=12)
    recorded.keyboard.press("Escape")
    assert box.is_hidden()
    assert recorded.evaluate(f"{FOCUSED}.getAttribute('aria-label')") == "What is Efficiency?"  # focus stays
    head = recorded.locator("#table-points th", has_text="Speedup")
    head.get_by_role("button", name="What is Speedup?").click()  # does not sort
    assert box.is_visible()
    assert head.get_attribute("aria-sort") is None
    recorded.locator("h1").click()
    assert box.is_hidden()


def test_every_definition_stands_in_the_page_and_every_control_has_a_name(recorded: Any) -> None:
    undefined = """[...document.querySelectorAll('.what')].filter((mark) =>
        (document.getElementById(mark.dataset.term)?.querySelector('dd').textContent.length ?? 0) < 20)"""
    assert recorded.evaluate(f"{undefined}.length") == 0
    nameless = """[...document.querySelectorAll('button, input, select, summary, [role=region], [role=img]')].filter(
        (element) => !(element.getAttribute('aria-label') || element.textContent.trim() || element.labels?.length))"""
    assert recorded.evaluate(f"{nameless}.length") == 0


def test_definitions_are_links_without_javascript(report: Path, opened: Callable[..., Any]) -> None:
    page = opened(report, java_script_enabled=False)
    page.locator("#answers a.what").first.click()
    assert "#term-" in page.url
    page.locator("#terms dd").first.wait_for(state="visible")  # the browser opens the fold
