"""What a person gets to see of a study, as text."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

from rich.console import Console
from study_builder import StudyBuilder

from analysis.curves import draw_curves
from analysis.equal_work import equal_work, equal_work_csv
from analysis.figures import draw_figures
from analysis.learning import learning_csv, learning_of
from analysis.points import points_of
from analysis.read import read_study
from analysis.report import render_report
from analysis.tables import WIDTH_OF_A_FILE, print_tables, scaling_csv


class Seen:
    """All that a study's report consists of, as text."""

    def __init__(self, study: StudyBuilder) -> None:
        read = read_study(study.folder)
        work = equal_work(read.folder, read.runs)
        points = points_of(read.runs, work.differing)
        learning = learning_of(read.runs, points, read.target_accuracy)
        self.figures = {**draw_figures(points), **draw_curves(learning)}
        self.html = render_report(read, points, work, learning, self.figures)
        self.csv = list(csv.DictReader(io.StringIO(scaling_csv(points))))
        stream = io.StringIO()
        wide = Console(file=stream, width=WIDTH_OF_A_FILE, highlight=False, markup=False, emoji=False)
        print_tables(wide, read, points, work, learning)
        self.learning = list(csv.DictReader(io.StringIO(learning_csv(learning))))
        self.work = list(csv.DictReader(io.StringIO(equal_work_csv(work))))
        self.table = stream.getvalue()
        self.svg = self.figures["speedup.svg"].decode()


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


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)
