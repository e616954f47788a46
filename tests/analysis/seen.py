"""A study's report as text."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from functools import cached_property
from html.parser import HTMLParser

from rich.console import Console
from study_builder import StudyBuilder

from analysis.read.study import read_study
from analysis.report.data.csv_tables import csv_tables
from analysis.report.findings import findings_of
from analysis.report.html.render import render_report
from analysis.report.print.figures import drawn
from analysis.report.terminal.tables import WIDTH_OF_A_FILE, print_tables


class Seen:
    """All parts of a study's report as text."""

    def __init__(self, study: StudyBuilder) -> None:
        self.findings = findings = findings_of(read_study(study.folder))
        self.html = render_report(findings)
        stream = io.StringIO()
        wide = Console(file=stream, width=WIDTH_OF_A_FILE, highlight=False, markup=False, emoji=False)
        print_tables(wide, findings)
        self.table = stream.getvalue()
        tables = {name: list(csv.DictReader(io.StringIO(table))) for name, table in csv_tables(findings).items()}
        self.csv, self.work = tables["scaling.csv"], tables["equal_work.csv"]
        self.breakdown, self.learning = tables["breakdown.csv"], tables["learning.csv"]
        self.resources = tables["resources.csv"]

    @cached_property
    def figures(self) -> dict[str, bytes]:
        return drawn(self.findings, ("svg", "png"))

    @property
    def svg(self) -> str:
        return self.words_of("speedup")

    def words_of(self, figure: str) -> str:
        """Return all text of a figure, with its lines joined."""
        return words(" ".join(ElementTree.fromstring(self.figures[f"{figure}.svg"]).itertext()))


class Tags(HTMLParser):
    """Every tag with its attributes, and the text between the tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def scripts_and_rest(html: str) -> tuple[list[str], str]:
    """Return the contents of the page's scripts, and the page without them, as a browser parses it: a script ends at
    its first end tag."""
    pattern = re.compile(r"<script\b[^>]*>(.*?)</script\s*>", re.DOTALL | re.IGNORECASE)
    return pattern.findall(html), pattern.sub("", html)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)
