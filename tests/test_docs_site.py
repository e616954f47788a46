"""The documentation site (docs/): built once without warnings, like `make docs`, then inspected.

Its reference pages are checked against schemas, configuration, and the messages in the source.
"""

from __future__ import annotations

import ast
import html
import json
import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from project import PROJECT

from analysis.read import run
from analysis.report.data.runs import COLUMNS
from analysis.report.outputs import OUTPUTS
from analysis.tables import warnings

DOCS = PROJECT / "docs"
SCHEMAS = PROJECT / "harness" / "schemas"
# Built from tracked and untracked files, but not ignored ones.
SECONDS = 120  # a build takes 4 to 10 s on 2 cores that others share


class Page(HTMLParser):
    """A built page: its anchors, link targets, and code cells in its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.cells: list[str] = []
        self._cell: list[str] | None = None
        self._column = -1
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.anchors.add(str(values["id"]))
        if tag in ("a", "link") and values.get("href"):
            self.links.append(str(values["href"]))
        if tag in ("img", "script") and values.get("src"):
            self.links.append(str(values["src"]))
        if tag == "tr":
            self._column = -1
        if tag == "td":
            self._column += 1
            self._cell = [] if self._column == 0 else None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and self._cell is not None:
            self.cells.append("".join(self._cell))
            self._cell = None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The pages by path in the site."""
    out = tmp_path_factory.mktemp("site")
    make = (PROJECT / "Makefile").read_text(encoding="utf-8")
    [line] = re.findall(r"^docs:.*\n\t\$\(VENV\) -m (sphinx .*)$", make, flags=re.MULTILINE)
    command = line.replace("build/doctrees", str(out / "doctrees")).replace("build/site", str(out / "site"))
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=PROJECT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
    files = {path.relative_to(out / "site").as_posix(): path for path in (out / "site").rglob("*") if path.is_file()}
    pages = {name: Page(path.read_text(encoding="utf-8")) for name, path in files.items() if name.endswith(".html")}
    for name in files.keys() - pages.keys():
        pages[name] = Page("")
    return pages


def test_every_page_is_in_the_navigation_of_the_first(site: dict[str, Page]) -> None:
    reached = {posixpath.normpath(urlsplit(link).path) for link in site["index.html"].links}
    pages = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    assert len(pages) >= 20
    assert pages - reached <= {"index.html"}


def test_every_link_and_anchor_leads_somewhere_and_none_fetches_from_outside(site: dict[str, Page]) -> None:
    broken = []
    for name, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            folder = posixpath.dirname(name)
            target = posixpath.normpath(posixpath.join(folder, unquote(parts.path))) if parts.path else name
            anchor = unquote(parts.fragment)
            if target not in site or (anchor and site[target].anchors and anchor not in site[target].anchors):
                broken.append(f"{name}: {link}")
    assert not broken


def slug(heading: str) -> str:
    """Return the anchor that a Git forge gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def test_anchors_in_the_pages_are_those_that_a_forge_gives_the_headings_too() -> None:
    """Anchors of keys and events are generated with the site; no page links to them."""
    pages = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)#([^)\s]+)\)", text):
            there = (page.parent / target if target else page).read_text(encoding="utf-8")
            prose = re.sub(r"^```.*?^```", "", there, flags=re.MULTILINE | re.DOTALL)
            headings = {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)}
            assert anchor in headings, f"{page.name}: {target}#{anchor}"


# --- the run directory ------------------------------------------------------------------------------------------------


def keys_of(schema: dict[str, Any], start: str = "") -> set[str]:
    found = set()
    for key, of in schema.get("properties", {}).items():
        inside, mark = (of, "") if "properties" in of else (of.get("items", {}), "[]")
        found |= {start + key} | keys_of(inside, f"{start}{key}{mark}.")
    return found


def read(name: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


def test_the_run_directory_s_page_has_every_key_of_every_schema_and_no_other(site: dict[str, Page]) -> None:
    page = (DOCS / "run-directory.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```\{schema\} (\w+)$", page, flags=re.MULTILINE)
    there = {path.name.split(".")[0] for path in SCHEMAS.glob("*.schema.json")}
    assert {*shown, "spec"} == there

    expected: set[str] = set()
    for name in shown:
        expected |= keys_of(read(name))
    for kind in read("events")["oneOf"]:
        expected |= keys_of(kind) - {"ev"}
    spec = read("spec")["properties"]
    # A free mapping, such as a strategy's options, has no fixed keys.
    expected |= keys_of({"properties": {"spec": spec["spec"], "site": spec["site"]}})
    # Files and events are listed by hand.
    by_hand = {html.unescape(cell) for cell in re.findall(r"^\| (`[^|]*`) \|", page, flags=re.MULTILINE)}
    cells = set(site["run-directory.html"].cells) - {cell.replace("`", "") for cell in by_hand}
    groups = {key.rsplit(".", depth)[0] for key in expected for depth in range(1, 3)}
    assert expected - cells <= groups  # spec.optimizer is a heading, its keys are rows
    # Fields missing from the schema of spec.json come from harness/core/spec.py.
    assert {cell for cell in cells - expected if not cell.startswith(("spec.", "site."))} == set()


def test_the_run_directory_s_page_names_every_kind_of_event_and_every_file_with_a_schema() -> None:
    page = (DOCS / "run-directory.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Events\n(.*?)^```\{schema", page, flags=re.MULTILINE | re.DOTALL)
    kinds = read("events")["properties"]["ev"]["enum"]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == sorted(kinds)
    files = set(re.findall(r"`([\w.<>-]+\.jsonl?)`", page))
    titles = {read(path.name.split(".")[0])["title"].split(":")[0] for path in SCHEMAS.glob("*.schema.json")}
    named = {title for title in titles if re.fullmatch(r"[\w.<>]+\.json", title)}
    assert len(named) >= 8
    assert named <= files
    of_your_training = {"probe.rank<r>.json", "stop_channel.json", "enough.json"}  # between processes of one version
    assert files - named == {"events.rank<r>.jsonl", *of_your_training}


# --- runs.csv ---------------------------------------------------------------------------------------------------------


def test_the_page_on_exports_has_every_column_of_the_runs(site: dict[str, Page]) -> None:
    assert set(COLUMNS) <= set(site["exports.html"].cells)


# --- configuration ----------------------------------------------------------------------------------------------------


def test_the_configuration_s_page_has_every_key_that_a_file_of_conf_sets(site: dict[str, Page]) -> None:
    def leaves(document: Any, start: str) -> set[str]:
        found: set[str] = set()
        for key, value in document.items():
            found |= leaves(value, f"{start}{key}.") if isinstance(value, dict) and value else {start + key}
        return found

    conf = PROJECT / "conf"
    main = yaml.safe_load((conf / "config.yaml").read_text(encoding="utf-8"))
    expected = leaves({key: value for key, value in main.items() if key not in ("defaults", "hydra")}, "")
    for path in conf.glob("*/*.yaml"):
        if path.parent.name != "experiment":
            expected |= leaves(yaml.safe_load(path.read_text(encoding="utf-8")), f"{path.parent.name}.")
            assert any(path.stem in cell for cell in site["configuration.html"].cells), path
    # Examples in conf/cluster fill mappings whose keys are free; a framework without options has an empty one.
    free = {"cluster.env", "cluster.peak_tflops", "cluster.sbatch_args", "framework.options", "strategy.options"}
    expected = {key for key in expected if not any(key == name or key.startswith(f"{name}.") for name in free - {key})}
    missing = expected - set(site["configuration.html"].cells)
    assert missing <= free


# --- error messages ---------------------------------------------------------------------------------------------------


def texts(path: Path) -> list[str]:
    """Return the texts of a Python file as its users see them, with … for inserted values."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_every_message_of_the_troubleshooting_page_is_in_the_source() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.*?)` \| \S.* \| \S.* \|$", page, flags=re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?!it says)", page, flags=re.MULTILINE)) > 30
    source = "\n".join(
        text for room in ("harness", "analysis") for path in (PROJECT / room).rglob("*.py") for text in texts(path)
    )
    for message in rows:
        # Between two pieces of a text, inserted values or other pieces of it may occur, but no other text.
        pattern = r"[^\n]*?".join(re.escape(piece.strip()) for piece in message.split("…") if piece.strip())
        assert re.search(pattern, source), message


# --- the report's page ------------------------------------------------------------------------------------------------


def first_cells(page: Path, heading: str) -> list[str]:
    """Return the code names in the first column of the table under a heading."""
    text = page.read_text(encoding="utf-8")
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


def test_the_report_s_page_explains_every_warning_every_status_and_every_kind_of_output() -> None:
    page = DOCS / "report.md"
    constants = {
        value for name, value in vars(warnings).items() if name.isupper() and isinstance(value, str) and len(value) < 40
    }
    assert sorted(first_cells(page, "Warnings")) == sorted(constants - {warnings.DALI})
    statuses = {run.COMPLETED, run.FAILED, run.INVALID, run.UNFINISHED, run.MISSING, run.UNREADABLE}
    assert set(first_cells(page, "Status of a run")) == statuses
    assert set(OUTPUTS) <= set(first_cells(page, "What is written"))
