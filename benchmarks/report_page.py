"""Size, creation time and responsiveness of report.html for a study of 10,000 runs.

    python benchmarks/report_page.py [--browser]

Result, 2 cores shared with seven other jobs, n = 1: 10,000 runs in 3,914 points; page 4.1 MB, created in 23 s (findings
in 27 s). In Chromium: text after 2 s, all figures after 8 s, points sorted in 2.5 s, filtered in 0.9 s, 10,000 runs
opened and sorted in 6 s, a run's details in 3 s. No comparable program creates such a page.

The rows of 10,000 runs are derived from a small study in memory; reading them is not measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "analysis"), str(ROOT / "tests" / "browser")]

from rich_study import rich_study  # noqa: E402

from analysis.read.row import Run  # noqa: E402
from analysis.read.study import Study, read_study  # noqa: E402
from analysis.report.findings import findings_of  # noqa: E402
from analysis.report.html.render import render_report  # noqa: E402

RUNS = 10_000
CHROMIUM = "/usr/bin/chromium"


def many(study: Study) -> Study:
    """Repeat the study's runs, including failed ones, under new model names until there are RUNS of them."""
    copies = []
    for i in range(-(-RUNS // len(study.runs))):
        for run in study.runs:
            named = {column: run[column] for column in ("model", "series", "point", "run_id") if run[column]}
            renamed = {column: text.replace("resnet", f"net{i}-") for column, text in named.items()}
            copies.append(Run.of({**run, **renamed}))
    return dataclasses.replace(study, runs=tuple(copies[:RUNS]))


def main() -> None:
    parser = argparse.ArgumentParser(description="report.html of 10,000 runs")
    parser.add_argument("--browser", action="store_true", help="also open it in Chromium, sort it and filter it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        study = many(read_study(rich_study(Path(folder) / "study").folder))
        begin = time.perf_counter()
        findings = findings_of(study)
        found = time.perf_counter()
        html = render_report(findings).encode()
        done = time.perf_counter()
        path = Path(folder) / "report.html"
        path.write_bytes(html)
        result = {
            "runs": len(study.runs),
            "points": len(findings.rows),
            "findings_seconds": round(found - begin, 1),
            "page_seconds": round(done - found, 1),
            "megabytes": round(len(html) / 1e6, 2),
        }
        if options.browser:
            result |= in_browser(path)
        print(json.dumps(result, indent=1))


def in_browser(path: Path) -> dict[str, float]:
    """Seconds until the text appears, until everything is drawn, and of user actions."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(120_000)
        seconds, last = {}, time.perf_counter()

        def lap(name: str) -> None:
            nonlocal last
            now = time.perf_counter()
            seconds[name], last = round(now - last, 2), now

        page.goto(path.as_uri())
        lap("load_seconds")
        page.wait_for_selector("html[data-drawn]")
        lap("drawn_seconds")
        page.locator("#table-points th", has_text="Speedup").get_by_role("button").click()
        page.wait_for_selector("#table-points th[aria-sort]")
        lap("sort_points_seconds")
        page.fill("input[name=words]", "fsdp net7-")
        page.wait_for_function("document.querySelector('.choose output').textContent !== ''")
        lap("filter_seconds")
        page.keyboard.press("Escape")
        page.wait_for_function("document.querySelector('.choose output').textContent === ''")
        lap("clear_seconds")
        page.evaluate("document.querySelector('#runs details.more').open = true")
        page.locator("#table-runs").scroll_into_view_if_needed()
        page.locator("#table-runs th", has_text="Samples/s").get_by_role("button").click()
        page.wait_for_selector("#table-runs th[aria-sort]")
        lap("sort_runs_seconds")
        page.locator("#table-runs button.opens").first.click()
        page.wait_for_selector("dialog[open]")
        lap("open_run_seconds")
        browser.close()
    return seconds


if __name__ == "__main__":
    main()
