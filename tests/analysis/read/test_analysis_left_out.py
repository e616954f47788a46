"""Unsupported combinations that a sweep leaves out, from the plan through study.json to the report."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
from project import PROJECT, Cli
from study_builder import SITE, StudyBuilder, spec_of

from analysis.read.study import read_study
from harness.plan.plan import Request, Resources, make_plan
from harness.study.study import Study

SENTENCE = "strategy 'horovod' is not offered by framework 'jax'; jax offers: plain, allreduce, mpi"
LEFT_OUT = f"left out, because it does not exist: {SENTENCE}"


def record(folder: Path, skipped: tuple[str, ...]) -> None:
    spec = spec_of(1)
    request = Request(spec, SITE, Resources("local", spec.placement, 1, 10.0))
    study = Study(folder.name, folder)
    with study.locked():
        study.record(make_plan([request], set(), set()), ["python"], "local", "0123", skipped)


def test_plan_says_once_what_is_left_out(cli: Cli) -> None:
    sweep = ("framework=pytorch,jax", "strategy=allreduce,horovod", "gpus=1,2", "skip_unsupported=true")
    planned = cli("harness", "-m", *sweep, "dataset=synthetic", "framework.environment=/usr/bin/env", "plan_only=true")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert planned.stdout.count("left out, because it does not exist: strategy 'horovod' is not offered") == 1


def test_study_json_holds_what_was_left_out_and_nothing_where_nothing_was(tmp_path: Path) -> None:
    record(tmp_path, ())
    record(tmp_path, (SENTENCE,))
    document = json.loads((tmp_path / "study.json").read_text())
    jsonschema.validate(document, json.loads((PROJECT / "harness/schemas/study.schema.json").read_text()))
    assert ["skipped" in invocation for invocation in document["invocations"]] == [False, True]
    assert document["invocations"][1]["skipped"] == [SENTENCE]


def test_report_says_once_what_any_command_left_out(study: StudyBuilder, analyse) -> None:
    study.completed(1)
    invocations = [{"skipped": [SENTENCE]}, {}, {"skipped": [SENTENCE, 7]}, {"skipped": "no list"}]
    study.write_study(invocations=invocations)
    assert read_study(study.folder).skipped == (SENTENCE,)
    printed = analyse(study.folder).stdout
    assert printed.count(LEFT_OUT) == 1
    assert (study.folder / "report.html").read_text().count(LEFT_OUT.replace("'", "&#39;")) == 1


def test_report_of_a_complete_sweep_has_no_such_note(study: StudyBuilder, analyse) -> None:
    study.completed(1)
    assert "left out" not in analyse(study.folder).stdout + (study.folder / "report.html").read_text()
