"""A browser for the module, and pages that must not load anything from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "analysis")]  # pages, rich_study; study_builder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser: {CHROMIUM} is not there (sbatch/system-packages.sh browser)")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """opened(path, width=1280, script="", **context): open a file and wait for its charts. `opened.wrong` collects
    errors on any page: console errors, dialogs, requests other than for the file itself."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def open_page(path: Path, width: int = 1280, script: str = "", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # for a busy machine
        page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("request", lambda request: request.url != path.as_uri() and wrong.append(f"request: {request.url}"))
        if script:
            page.add_init_script(script)
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn]")
        return page

    open_page.wrong = wrong  # type: ignore[attr-defined]
    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pages import written
    from rich_study import rich_study

    folder = tmp_path_factory.mktemp("rich")
    return written(folder, rich_study(folder / "study").folder)


@pytest.fixture(scope="module")
def page(report: Path, opened: Callable[..., Any]) -> Any:
    """The page of the rich study on a system with a dark theme. Tests must restore its state."""
    return opened(report, color_scheme="dark")


@pytest.fixture(autouse=True)
def nothing_goes_wrong(opened: Callable[..., Any]) -> Iterator[None]:
    yield
    assert opened.wrong == []  # type: ignore[attr-defined]
