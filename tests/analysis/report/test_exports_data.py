"""runs.csv, runs.parquet and report.json, which other programs read."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest
from jsonschema import Draft202012Validator
from project import PROJECT
from study_builder import Logs, StudyBuilder, spec_of

from analysis.base.column import COUNT, TEXT, Column
from analysis.read.study import read_study
from analysis.report.data.cells import csv_of_frame, inert
from analysis.report.data.csv_tables import csv_of
from analysis.report.data.document import figure
from analysis.report.data.files import data_of
from analysis.report.data.runs import COLUMNS
from analysis.report.data.schema import FILE, schema
from analysis.report.findings import Findings, findings_of
from analysis.report.headline import headline_sentences


def findings(study: StudyBuilder, target: float | None = None) -> Findings:
    return findings_of(read_study(study.folder), target)


def document_of(study: StudyBuilder, target: float | None = None) -> dict[str, Any]:
    """Return report.json after validating it."""
    text = data_of(findings(study, target))["report.json"].decode()
    document: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    Draft202012Validator(schema()).validate(document)
    return document


def full(study: StudyBuilder) -> None:
    """Add runs of every kind: two series with probes, energy and evaluations, one failed, one requested but missing."""
    probes = {kind: [0.09] * 6 for kind in ("full", "cached_batch", "no_sync")}
    for repeat, factor in enumerate((1.0, 1.02, 0.98)):
        for gpus in (1, 2):
            logs = Logs(
                rounds={**probes, "allreduce": [0.01] * 6},
                block_seconds=[factor * gpus**0.1] * 6,
                accuracy=0.7 + 0.01 * repeat,
                evaluations={20: 0.5, 40: 0.6 + 0.02 * repeat},
                energy=("GPU-{rank}", 100.0),
            )
            study.add(spec_of(gpus, repeat=repeat, seed=1 + repeat), logs)
            study.add(spec_of(gpus, strategy="horovod", repeat=repeat), Logs(block_seconds=[1.1 * factor] * 6))
    study.add(spec_of(4), Logs(), result={"status": "failed", "reason": "rank 3 ended with signal 9"})
    study.add(spec_of(8), Logs(block_seconds=[1.0] * 4), result={"oversubscribed": "8 ranks share 4 GPUs"})
    study.requested.append("pytorch-allreduce-resnet44-16gpu-000000000000")
    study.write_study()


def test_the_document_has_every_part_and_is_as_its_schema_says(study: StudyBuilder) -> None:
    full(study)
    document = document_of(study, target=0.71)
    Draft202012Validator.check_schema(schema())
    assert document["v"] == 1
    assert document["headlines"] == headline_sentences(findings(study))
    one, two, four, eight = (point for point in document["points"] if point["strategy"] == "allreduce")
    speedup = two["figures"]["speedup"]
    assert (speedup["unit"], speedup["basis"], speedup["marks"]) == ("1", "3 runs each", [])
    assert speedup["value"] == pytest.approx(2 / 2**0.1)
    assert speedup["low"] < speedup["value"] < speedup["high"]
    assert one["breakdown"]["compute_seconds"]["value"] == pytest.approx(0.09)
    assert two["breakdown"]["efficiency_lost_to_unexplained"]["basis"] == "3 runs; base: 3 runs"
    assert two["learning"]["to_train_seconds"]["basis"] == "range of 2 of 3 runs"
    assert two["decisions"]["epoch_gpu_hours"]["unit"] == "GPU h"
    assert two["resources"]["joules_per_sample"]["value"] == pytest.approx(100 / 1280)
    assert eight["figures"]["efficiency"]["marks"] == eight["marks"] == ["oversubscribed", "single run"]
    failed, missing = (run for run in document["runs"] if run["status"] != "completed")
    assert four["figures"]["samples_per_second"] == {
        "value": None,
        "unit": "samples/s",
        "marks": [],
        "reason": f"{failed['run_id']}: failed, rank 3 ended with signal 9",
    }
    assert {row["verdict"] for row in document["comparisons"]} <= {"faster", "no difference shown"}
    assert document["statuses"] == {"completed": 13, "failed": 1, "missing": 1}
    assert document["points"][failed["point"]] == four
    assert (missing["point"], missing["reason"]) == (None, "study.json asks for it, and runs/ has no spec.json of it")


def test_the_schema_s_file_has_every_column() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == schema(), "python -m analysis.report.data.schema"


def test_the_document_names_every_damaged_file_as_damage_csv_does(study: StudyBuilder) -> None:
    torn, empty = study.completed(1), study.completed(2)
    with (torn / "attempt-1" / "events.rank0.jsonl").open("a") as log:
        log.write('{"v":1,"t":17')
    (empty / "attempt-1" / "events.rank1.jsonl").write_text("")
    found = findings(study)
    document = document_of(study)
    rows = list(csv.DictReader(io.StringIO(csv_of(found)["damage.csv"].decode())))
    assert [{**row, "count": str(row["count"])} for row in document["damage"]] == rows
    assert {(row["run_id"], row["kind"]) for row in rows} == {(torn.name, "torn line"), (empty.name, "empty log")}


def test_the_schema_is_strict_and_says_what_everything_is(study: StudyBuilder) -> None:
    (study.completed(1) / "attempt-1" / "env.json").write_text("torn")
    document = document_of(study)
    validator = Draft202012Validator(schema())
    for path in ([], ["study"], ["damage", 0], ["points", 0], ["points", 0, "figures", "efficiency"], ["runs", 0]):
        broken = json.loads(json.dumps(document))
        inner = broken
        for key in path:
            inner = inner[key]
        inner["surplus"] = 1
        assert not validator.is_valid(broken), path
    for name, definition in schema()["$defs"].items():
        for key, about in definition["properties"].items():
            assert about.get("description") or "$ref" in about, f"{name}.{key}"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_missing_numbers_are_null_with_a_reason(value: float) -> None:
    assert figure(value, "s", ["single run"]) == {
        "value": None,
        "unit": "s",
        "marks": ["single run"],
        "reason": f"not finite: {value}",
    }
    assert figure(None, "s", []) is None


def test_every_run_is_a_row_and_csv_and_parquet_hold_the_same(study: StudyBuilder) -> None:
    full(study)
    files = data_of(findings(study))
    rows = list(csv.DictReader(io.StringIO(files["runs.csv"].decode())))
    table = pd.read_parquet(io.BytesIO(files["runs.parquet"]))
    assert list(rows[0]) == list(table.columns) == list(COLUMNS)
    assert [row["run_id"] for row in rows] == table["run_id"].tolist()
    assert len(rows) == 15
    by_status = {row["status"]: row for row in rows}
    assert by_status["failed"]["reason"] == "rank 3 ended with signal 9"
    assert by_status["missing"]["samples_per_second"] == ""
    first = next(row for row in rows if (row["strategy"], row["gpus"], row["repeat"]) == ("allreduce", "2", "0"))
    assert float(first["samples_per_second"]) == pytest.approx(2 * 1280 / 2**0.1)
    assert (first["test_accuracy"], first["energy_joules"], first["energy_basis"]) == ("0.7", "1200.0", "measured")
    assert next(row for row in rows if row["gpus"] == "8")["marks"] == "oversubscribed;single run"
    described = pyarrow.parquet.read_schema(io.BytesIO(files["runs.parquet"])).field("step_seconds").metadata
    assert described == {b"description": b"mean time of the timed steps, s"}


def test_a_cell_may_name_ten_thousand_runs(tmp_path: Path) -> None:
    """The csv module reads 131,072 characters of a cell unless told otherwise."""
    runs = ";".join(f"pytorch-allreduce-resnet20-1gpu-{number:012}" for number in range(10_000))
    table = f"series,gpus,samples_per_second,runs\na,1,100,{runs}\na,2,190,{runs}\n"
    path = tmp_path / "speedup.csv"
    path.write_text(table)
    # In a process of its own, since the limit holds for all of it.
    command = [sys.executable, "-m", "analysis", "predict", str(path), "gpus=4"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_no_formulas_for_a_spreadsheet(study: StudyBuilder) -> None:
    hostile = '=HYPERLINK("x","y")'
    assert inert(hostile) == f"'{hostile}"
    assert [inert(text) for text in ("-1.5e-3", "@SUM(A1)", "–", "-x")] == ["-1.5e-3", "'@SUM(A1)", "–", "'-x"]
    columns = {"a": Column("a", TEXT, "a text"), "b": Column("b", COUNT, "a number")}
    frame = pd.DataFrame({"a": ['=1+1,"x"', None], "b": [-2, 3]})
    assert csv_of_frame(frame, columns) == 'a,b\n"\'=1+1,""x""",-2\n,3\n'
    study.completed(1, model=hostile)
    study.add(spec_of(2), result={"status": "failed", "reason": "+cmd|' /C calc'!A0"})
    study.write_study(study="@SUM(1)")
    found = findings(study)
    files = data_of(found) | csv_of(found)
    for name in ("runs.csv", "scaling.csv", "breakdown.csv"):
        cells = [cell for row in csv.reader(io.StringIO(files[name].decode())) for cell in row]
        assert any(f"'{hostile}" in cell for cell in cells), name
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))], name
    table = pd.read_parquet(io.BytesIO(files["runs.parquet"]))
    assert set(table["study"]) == {"@SUM(1)"}
    assert json.loads(files["report.json"])["points"][0]["model"] == hostile
