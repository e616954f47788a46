"""Every command on a study of the user's own training."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from study_builder import CREATED, StudyBuilder
from workload_studies import Seen, add_workload, workload_spec, workload_study

from analysis.__main__ import main
from analysis.read.study import read_study
from analysis.report.findings import findings_of
from analysis.report.html.render import render_report
from analysis.report.live.studies import live_row


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main([str(argument) for argument in arguments]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


@pytest.fixture
def own(tmp_path: Path) -> StudyBuilder:
    return workload_study(tmp_path / "own", repeats=2, workload={"unit": "tokens"})


def test_a_report_names_the_training_its_unit_and_its_method(own: StudyBuilder, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = printed(capsys, own.folder)
    assert "train reaches 3.78× speedup (3.46–4.13) on 4 GPUs: 94 % efficiency." in said
    assert "train (weak scaling, 128 per GPU), relative to 1 GPU" in said
    assert "tokens/s (95 %)" in said
    assert "train: your own training, measured by hooks in its process; its throughput counts tokens" in " ".join(
        said.split()
    )
    assert (own.folder / "report.pdf").stat().st_size > 0


def test_no_report_has_the_names_of_a_catalogue_that_the_training_is_not_in(own: StudyBuilder, capsys) -> None:
    said = printed(capsys, own.folder, "--full", "--only", "html,csv,data,tex")
    page = re.sub(r"<script.*?</script>", "", (own.folder / "report.html").read_text(), flags=re.DOTALL)
    for text in (said, page, (own.folder / "tables.tex").read_text()):
        assert "script own" not in text
        assert "own on own" not in text
        assert "samples/s" not in text
        assert "per sample" not in text
        assert "script," not in text
    assert "script" not in said
    assert "Tokens/s" in page
    assert "the arithmetic of your own training is not known" in page
    assert page.count("measured by hooks in its process") == 2  # for its points; for its runs, which all are
    assert "dataset.classes" not in page  # the configuration that all runs share
    assert "workload.command" in page


def test_waiting_for_data_is_the_data_stall_of_a_point(own: StudyBuilder, capsys) -> None:
    said = printed(capsys, own.folder, "--full", "--only", "csv")
    # A hundredth of a second of 1.03 and 1.04 s per ten steps, by the factors of the two runs.
    assert re.search(r"^1 +104 ms +10.4 ms +93.2 ms", said, re.MULTILINE)
    assert "data stall is the waiting for the DataLoader on the host" in " ".join(said.split())
    point = findings_of(read_study(own.folder)).points[0]
    assert point.data_stall_seconds == pytest.approx(0.01 * (1.03 + 1.03 * 1.01) / 2)


def test_where_no_loader_was_seen_the_parts_are_unknown(study: StudyBuilder, capsys) -> None:
    add_workload(study, workload_spec(1), Seen(data_seconds=None))
    said = printed(capsys, study.folder, "--full", "--only", "csv")
    assert "the training of your own has no probes, and no DataLoader was seen" in " ".join(said.split())
    assert findings_of(read_study(study.folder)).points[0].data_stall_seconds is None


def test_the_reason_for_an_undivided_step_is_in_the_report(study: StudyBuilder, capsys) -> None:
    seen = Seen(data_seconds=[0.1], skipped="FSDP gathers the parameters")
    add_workload(study, workload_spec(1), seen)
    printed(capsys, study.folder, "--only", "html,csv")
    for file in ("report.html", "breakdown.csv"):
        text = (study.folder / file).read_text()
        assert "compute and communication are one part: FSDP gathers the parameters" in text


def test_a_pattern_and_its_unverified_world_size_are_in_the_report(study: StudyBuilder, capsys) -> None:
    for gpus in (1, 2):
        spec = workload_spec(gpus, {"kind": "command", "pattern": "megatron", "name": "megatron"})
        add_workload(study, spec, Seen(method="pattern", world_size=None))
    assert "megatron: your own training, measured by a pattern over its output" in printed(capsys, study.folder)
    assert "world size not verified" in render_report(findings_of(read_study(study.folder)))


def test_a_proposal_from_a_pattern_claims_no_fences(study: StudyBuilder, capsys) -> None:
    for gpus in (1, 2):
        spec = workload_spec(gpus, {"kind": "command", "pattern": "megatron", "name": "megatron"})
        add_workload(study, spec, Seen(method="pattern", world_size=None))
    printed(capsys, "proposal", study.folder, "gpus=2", "runs=3", "hours=1")
    text = (study.folder / "proposal.md").read_text()
    assert "whose steps are read from what it printed, after a warm-up." in text
    assert "synchronisations" not in text


def test_what_a_script_does_before_its_first_step_is_not_its_launch(study: StudyBuilder) -> None:
    add_workload(study, workload_spec(1), Seen(startup={"interpreter": 0.5, "script": 1.0}))
    point = findings_of(read_study(study.folder)).startup[0]
    assert point["interpreter_seconds"] == 0.5
    # The log's start is written 2 s after the begin of the ranks.
    assert point["launch_seconds"] == pytest.approx(0.5)
    assert point["resume_seconds"] >= 1.0
    assert "Rest, for your own training" in render_report(findings_of(read_study(study.folder)))


def test_sizes_are_predicted_in_the_unit_of_the_training(own: StudyBuilder, capsys) -> None:
    assert "tokens/s" in printed(capsys, "predict", own.folder, "gpus=8", "samples=1e6")
    document = json.loads(printed(capsys, "predict", own.folder, "gpus=8", "epochs=2", "--json"))
    assert document["series"][0]["plan"] == (
        "Hours are not known: the runs do not say how many samples an epoch has; give samples=."
    )


def test_the_name_of_a_script_says_nothing_of_its_parameters(study: StudyBuilder, capsys) -> None:
    for gpus in (1, 2):
        add_workload(study, workload_spec(gpus, {"name": "resnet50"}))
    said = " ".join(printed(capsys, "predict", study.folder, "gpus=4", "gpus_per_node=2", "bandwidth_gbit=100").split())
    assert "25.6" not in said
    assert "the number of parameters is not known here" in said


def test_next_repeats_the_command_with_the_user_s_own_part(study: StudyBuilder, capsys) -> None:
    for gpus in (1, 2):
        add_workload(study, workload_spec(gpus, repeat=0))
    command = "python -m harness -m gpus=1,2 workload=script workload.params.lr=0.1,0.2 -- train.py gpus=1 -m"
    words = command.split()
    invocation = {"t": CREATED, "command": words, "code_version": "0", "cluster": "atlas", "arrays": []}
    study.write_study(invocations=[{**invocation, "runs": study.requested}])
    said = printed(capsys, "next", study.folder, "gpus=8")
    assert "python -m harness -m gpus=8 workload=script workload.params.lr=0.1 -- train.py gpus=1 -m" in said


def test_what_needs_a_network_of_the_catalogue_is_refused_in_a_sentence(own: StudyBuilder, capsys) -> None:
    said = printed(capsys, "simulate", own.folder, "gpus=16", code=2)
    assert "what its ranks send to each other is not known of a training of your own" in said
    assert "model 'train' is not in the catalogue" in printed(capsys, "estimate", "model=train", "gpus=1", code=2)


def test_a_proposal_is_about_the_user_s_training(own: StudyBuilder, capsys) -> None:
    printed(capsys, "proposal", own.folder, "gpus=4", "runs=3", "steps=1000")
    text = (own.folder / "proposal.md").read_text()
    assert "train: weak scaling, 128 samples per GPU and step" in text
    assert "own" not in text.replace("your own training", "")
    assert "Times are mean seconds per token over the completed runs" in text


@pytest.mark.parametrize("kind", ["mlperf", "tensorboard", "mlflow"])
def test_runs_are_exported(own: StudyBuilder, kind: str, capsys) -> None:
    assert "6 runs (6 completed)" in printed(capsys, "export", own.folder, kind)


def test_two_studies_of_a_training_are_compared(own: StudyBuilder, tmp_path: Path, capsys) -> None:
    other = workload_study(tmp_path / "other", repeats=2, workload={"unit": "tokens"})
    assert "3 points in both, 3 tested, 0 worse" in printed(capsys, "compare", own.folder, other.folder)


def test_a_training_is_compared_with_its_earlier_code_which_is_named(own: StudyBuilder, tmp_path: Path, capsys) -> None:
    changes = {"unit": "tokens", "code": "4567def", "command": ("train.py", "--fused")}
    other = workload_study(tmp_path / "other", repeats=2, workload=changes)
    said = printed(capsys, "compare", own.folder, other.folder)
    assert "3 points in both, 3 tested, 0 worse" in said
    assert said.count("code: 0123abc | 4567def") == 3
    assert "command: train.py --batch-size {batch_per_gpu} --lr {lr} | train.py --fused" in said
    assert "lr:" not in said


def test_the_live_page_counts_the_unit(study: StudyBuilder) -> None:
    spec = workload_spec(2, {"unit": "tokens", "samples_per_step": 1000})
    row = live_row(add_workload(study, spec, Seen(block_seconds=[1.0] * 8)))
    assert row["samples_per_second"] == 10_000
