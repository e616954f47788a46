"""`python -m analysis export`, read back with MLPerf's parser, TensorBoard and MLflow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.compliance_checker import mlp_parser
from mlperf_logging.mllog import constants
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.__main__ import main
from analysis.measures.speedup import points_of
from analysis.read.study import read_study
from analysis.report.data.history import exported_runs
from harness.core.spec import CheckpointSpec

ACCURACIES = {20: 0.5, 50: 0.6}


@pytest.fixture
def exported(study: StudyBuilder, tmp_path: Path) -> tuple[StudyBuilder, Path]:
    """A study with a completed run, one that failed after its third block, and a missing one; and the output folder."""
    logs = Logs(block_seconds=[1.0, 1.1] * 3, accuracy=0.6, evaluations=ACCURACIES)
    study.add(spec_of(2), logs, result={"oversubscribed": "2 ranks share 1 GPU"})
    failure = {"status": "failed", "reason": "rank 1 ended with signal 9", "failed_rank": 1}
    study.add(spec_of(4), Logs(block_seconds=[1.0] * 3, ends=False), result=failure)
    study.requested.append("../=cmd()\x1b[31m")
    study.write_study()
    return study, tmp_path / "out"


def export(study: StudyBuilder, *arguments: str) -> None:
    assert main(["export", str(study.folder), *arguments]) == 0


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the single line of a refusal."""
    assert main(["export", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_mlperf_lines_are_what_its_own_parser_reads(
    exported: tuple[StudyBuilder, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = exported
    export(study, "mlperf", f"--out={out}")
    assert "3 runs (1 completed, 1 failed, 1 missing)" in capsys.readouterr().out
    export(study, "mlperf", f"--out={out}")
    files = sorted(out.iterdir())
    assert len(files) == 3
    known = {value for name, value in vars(constants).items() if name.isupper()} | {"tracked_stats"}
    found: dict[str, dict[str, list[Any]]] = {}
    for path in files:
        assert path.read_text().startswith("# Not an MLPerf result and no submission")
        lines, errors = mlp_parser.parse_file(str(path), ruleset="5.1.0")
        assert not errors
        assert {line.key for line in lines} <= known
        times = [line.timestamp for line in lines]
        assert times == sorted(times)
        values: dict[str, list[Any]] = {}
        for line in lines:
            values.setdefault(line.key, []).append(line.value)
        found[values["run_stop"][0]["metadata"]["run_status"]] = values
    done, failed, missing = (found[status] for status in ("completed", "failed", "missing"))
    assert [done[key][0]["value"] for key in ("seed", "global_batch_size", "eval_samples")] == [1, 256, 10_000]
    # 0.1 at 128 samples, linear in the global batch.
    assert done["opt_base_learning_rate"][0]["value"] == pytest.approx(0.2)
    last = done["run_stop"][0]["metadata"]
    assert (last["status"], last["samples_count"], last["marks"]) == (
        "success",
        6 * 2560,
        ["oversubscribed", "single run"],
    )
    first = done["tracked_stats"][0]
    assert first["value"]["throughput"] == pytest.approx(2560.0)
    assert (first["metadata"]["samples_count"], first["metadata"]["step_num"]) == (2560, 20)
    accuracies = [(line["metadata"]["step_num"], line["value"]) for line in done["eval_accuracy"]]
    assert accuracies[:2] == list(ACCURACIES.items())
    assert len(failed["tracked_stats"]) == 3
    for values, reason in ((failed, "rank 1 ended with signal 9"), (missing, "study.json asks for it")):
        metadata = values["run_stop"][0]["metadata"]
        assert metadata["status"] == "aborted"
        assert reason in metadata["reason"]


def test_tensorboard_reads_curves_and_settings(exported: tuple[StudyBuilder, Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    study, out = exported
    export(study, "tensorboard", f"--out={out}")
    export(study, "tensorboard", f"--out={out}")
    assert len(list(out.rglob("*tfevents*"))) == len(list(out.iterdir())) == 3
    (completed,) = out.glob("*-2gpu-*")
    read = EventAccumulator(str(completed)).Reload()
    throughput = read.Scalars("throughput/samples_per_second")
    assert [event.step for event in throughput] == [20, 30, 40, 50, 60, 70]
    assert throughput[1].value == pytest.approx(2560 / 1.1)
    assert all(CREATED < event.wall_time < CREATED + 60 for event in throughput)
    assert [event.value for event in read.Scalars("accuracy/test")][:2] == pytest.approx([0.5, 0.6])
    assert [event.step for event in read.Scalars("loss/train")] == [20, 30, 40, 50, 60, 70]
    assert read.Scalars("run/samples_per_second")[0].value == pytest.approx(2560 / 1.05)
    plugin = read.summary_metadata
    start = HParamsPluginData.FromString(plugin["_hparams_/session_start_info"].plugin_data.content)
    hparams = start.session_start_info.hparams
    assert hparams["global_batch"].number_value == 256
    assert hparams["marks"].string_value == "oversubscribed;single run"
    (failed,) = out.glob("*-4gpu-*")
    read = EventAccumulator(str(failed)).Reload()
    end = read.summary_metadata["_hparams_/session_end_info"].plugin_data.content
    assert HParamsPluginData.FromString(end).session_end_info.status == 2  # STATUS_FAILURE
    assert len(read.Scalars("throughput/samples_per_second")) == 3


def test_mlflow_has_a_run_for_each_and_once(
    exported: tuple[StudyBuilder, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true")
    from mlflow.tracking import MlflowClient

    study, out = exported
    export(study, "mlflow", f"--out={out}")
    assert "3 written" in capsys.readouterr().out
    export(study, "mlflow", f"--out={out}")
    assert "0 written" in capsys.readouterr().out
    study.add(spec_of(4), Logs(block_seconds=[1.0] * 6), attempt=2, result={"reason": None}, finished=False)
    (study.folder / "runs" / spec_of(4).run_id / "result.json").unlink()
    export(study, "mlflow", f"--out={out}")
    assert "1 written" in capsys.readouterr().out
    client = MlflowClient(out.resolve().as_uri())
    experiment = client.get_experiment_by_name(study.name)
    runs = {run.data.tags["status"]: run for run in client.search_runs([experiment.experiment_id])}
    assert len(client.search_runs([experiment.experiment_id])) == 3
    assert set(runs) == {"completed", "unfinished", "missing"}
    assert [runs[status].info.status for status in ("completed", "unfinished", "missing")] == [
        "FINISHED",
        "RUNNING",
        "FAILED",
    ]
    run = runs["completed"]
    assert run.info.run_name == spec_of(2).run_id
    assert (run.data.params["global_batch"], run.data.params["strategy"]) == ("256", "allreduce")
    assert run.data.tags["marks"] == "oversubscribed;single run"
    assert run.data.metrics["samples_per_second"] == pytest.approx(2560 / 1.05)
    history = client.get_metric_history(run.info.run_id, "block_samples_per_second")
    assert [(metric.step, metric.timestamp > 1000 * CREATED) for metric in history] == [
        (step, True) for step in (20, 30, 40, 50, 60, 70)
    ]
    assert refusal(capsys, str(study.folder), "mlflow", "--tracking-uri=gopher://x").startswith(
        "python -m analysis export: MLflow cannot open gopher://x: "
    )


def test_steps_that_were_done_twice_are_those_that_count(study: StudyBuilder) -> None:
    # The warm-up is steps 0 to 9; the first attempt is cut off after step 39, the second resumes from 30.
    first = Logs(block_seconds=[1.0, 1.0, 9.0], checkpoints={30: 1.0}, ends=False, exit_codes=[-9])
    second = Logs(block_seconds=[1.0, 1.0], resume=resume(30, 1), begin=CREATED + 1000)
    study.attempts(spec_of(1, checkpoint=CheckpointSpec(10)), first, second)
    read = read_study(study.folder)
    (run,) = exported_runs(read, points_of(read.runs))
    steps = [(block.step, block.seconds, (block.t or 0.0) > CREATED + 1000) for block in run.blocks]
    assert steps[:2] == [(20, 1.0, False), (30, 1.0, False)]
    assert [late for step, _, late in steps if step > 30] == [True] * (len(steps) - 2)
    assert 9.0 not in [seconds for _, seconds, _ in steps]


@pytest.mark.parametrize(("kind", "package"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow")])
def test_missing_packages_of_a_format_are_named(
    study: StudyBuilder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert refusal(capsys, str(study.folder), kind) == (
        f"python -m analysis export: {kind} needs the package {package}, which is not installed: "
        f"pip install 'scaling-harness[{kind}]'\n"
    )


def test_what_cannot_be_exported_is_refused_in_a_sentence(
    study: StudyBuilder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = str(study.folder)
    assert "there is no format 'wandb'; there are mlperf, tensorboard, mlflow" in refusal(capsys, folder, "wandb")
    assert "--tracking-uri is for mlflow" in refusal(capsys, folder, "mlperf", "--tracking-uri=http://x")
    assert "give one of them" in refusal(capsys, folder, "mlflow", "--tracking-uri=http://x", "--out=y")
    assert "has no runs to analyse" in refusal(capsys, folder, "mlperf", f"--out={tmp_path / 'out'}")
    study.completed(1)
    file = tmp_path / "file"
    file.write_text(json.dumps({}))
    assert "choose another folder" in refusal(capsys, folder, "mlperf", f"--out={file}")
