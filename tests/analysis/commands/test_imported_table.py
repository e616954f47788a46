"""Every command on a table of measurements from elsewhere."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from study_builder import Logs, StudyBuilder, spec_of
from workload_studies import workload_study

from analysis.__main__ import main

ROWS = [(1, 100), (1, 102), (2, 190), (2, 192), (4, 350), (4, 356)]


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main([str(argument) for argument in arguments]) == code
    out, err = capsys.readouterr()
    return err if code == 2 else out


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "mine.csv")


def write(path: Path, factor: float = 1.0, head: str = "gpus,nodes,samples_per_second,framework", tail: str = ",jax"):
    rows = [f"{gpus},1,{rate * factor:g}{tail}" for gpus, rate in ROWS]
    path.write_text("\n".join([head, *rows, ""]))
    return path


def test_a_table_gets_every_output_of_a_report_beside_it(table: Path, analyse) -> None:
    process: subprocess.CompletedProcess[str] = analyse(table)
    assert (process.returncode, process.stderr) == (0, "")
    assert "mine reaches 3.50× speedup (" in process.stdout  # (1/350 + 1/356) by (1/100 + 1/102): 3.495
    folder = table.with_name("mine_report")
    page = (folder / "report.html").read_text()
    assert "imported; how it was measured" in page
    assert not [said for said in ("<h3>Efficiencies</h3>", "code version") if said in page], "nothing is known of it"
    assert (folder / "report.pdf").stat().st_size > 0
    assert list(table.parent.glob("*.tmp")) == []
    document = json.loads((folder / "report.json").read_text())
    assert all("imported" in point["marks"] for point in document["points"])


def test_every_figure_of_the_terminal_is_labelled(table: Path, capsys) -> None:
    said = printed(capsys, table, "--full", "--only", "csv")
    assert "imported; how it was measured is not known here" in " ".join(said.split())
    assert all("imported" in line for line in said.splitlines() if "reaches" in line)
    assert all("(imported)" in line for line in said.splitlines() if "█" in line and "%, " in line)


def test_sizes_are_predicted_and_labelled(table: Path, capsys) -> None:
    document = json.loads(printed(capsys, "predict", table, "gpus=8", "gpus_per_node=8", "--json"))
    (series,) = document["series"]
    assert series["marks"] == ["imported"]
    assert [one["gpus"] for one in series["predictions"]] == [1, 2, 4, 8]


def test_a_proposal_says_that_its_measurements_are_imported(table: Path, capsys) -> None:
    printed(capsys, "proposal", table, "gpus=4", "runs=3", "hours=5")
    text = (table.with_name("mine_report") / "proposal.md").read_text()
    assert "Throughputs are imported; how they were measured is not known here" in text
    assert "timed in blocks" not in text
    assert "Imported; on what it was measured is not stated." in text


def test_steps_without_a_batch_are_refused(table: Path, capsys) -> None:
    said = printed(capsys, "proposal", table, "gpus=4", "runs=3", "steps=5", code=2)
    assert "the batch of this series is not known: give hours= instead of steps=" in said


def test_what_to_measure_next_is_said_without_a_command(table: Path, capsys) -> None:
    assert printed(capsys, "next", table, "gpus=8").count("no command of this study is known") == 1


def test_a_proposal_says_that_the_batch_is_not_stated(table: Path, capsys) -> None:
    printed(capsys, "proposal", table, "gpus=4", "runs=3", "hours=1")
    assert "scaling, batch not stated" in (table.with_name("mine_report") / "proposal.md").read_text()


def test_runs_of_a_table_are_exported(table: Path, capsys) -> None:
    assert "6 runs (6 completed)" in printed(capsys, "export", table, "mlperf")
    assert len(list((table.with_name("mine_report") / "exports" / "mlperf").glob("*.log"))) == 6


def test_a_table_cannot_be_simulated(table: Path, capsys) -> None:
    assert "not simulated" in printed(capsys, "simulate", table, "gpus=16", code=2)


def test_two_tables_are_compared_and_a_regression_is_found(table: Path, tmp_path: Path, capsys) -> None:
    slower = write(tmp_path / "slower.csv", 0.5)
    said = printed(capsys, "compare", table, slower, code=1)
    assert "3 points in both, 3 tested, 3 worse" in said
    assert "throughput: 101 samples/s | 50.5 samples/s" in said  # 2 / (1/100 + 1/102), and half of it


def test_a_table_is_compared_with_a_study_and_the_facts_that_differ_are_named(
    study: StudyBuilder, table: Path, capsys
) -> None:
    for gpus in (1, 2):
        for repeat in (0, 1):
            study.add(spec_of(gpus, repeat=repeat), Logs(block_seconds=[1.0 + 0.01 * repeat] * 4))
    said = printed(capsys, "compare", study.folder, table, code=1)
    assert "2 points in both, 2 tested" in said
    assert "framework: pytorch | jax" in said
    assert "model: resnet44 | unknown" in said
    assert "only in mine" in said


def test_a_table_is_compared_with_the_user_s_own_training(table: Path, tmp_path: Path, capsys) -> None:
    own = workload_study(tmp_path / "own", repeats=2)
    said = printed(capsys, "compare", own.folder, table, code=1)
    assert "workload: train | unknown" in said
    assert "lr: 0.1 | unknown" in said


def test_both_throughputs_of_a_study_and_a_table_are_in_one_figure(table: Path, tmp_path: Path, capsys) -> None:
    own = workload_study(tmp_path / "own", repeats=2)
    said = printed(capsys, "compare", own.folder, table, "--out", tmp_path / "drawn", code=1)
    assert "drawn/comparison.pdf" in said
    drawn = (tmp_path / "drawn" / "comparison.svg").read_text()
    for text in (">how-it-scales</text>", ">mine</text>", ">samples per second</text>"):
        assert text in drawn
    kinds = {path.suffix: path.stat().st_size > 1000 for path in (tmp_path / "drawn").iterdir()}
    assert kinds == dict.fromkeys((".pdf", ".svg", ".png"), True)


def test_series_of_one_study_in_both_figures_are_named_by_their_study(table: Path, tmp_path: Path, capsys) -> None:
    frameworks = tmp_path / "frameworks.csv"
    frameworks.write_text(
        table.read_text() + write(tmp_path / "x.csv", 2, tail=",pytorch").read_text().split("\n", 1)[1]
    )
    said = printed(capsys, "compare", frameworks, table, "--out", tmp_path / "drawn")
    assert "3 points in both, 3 tested, 0 worse" in said
    assert said.count("only in frameworks") == 3  # those of pytorch, which mine does not have
    drawn = (tmp_path / "drawn" / "comparison.svg").read_text()
    for text in ("frameworks: JAX", "frameworks: PyTorch", ">mine</text>"):
        assert text in drawn


def test_series_of_equal_work_are_compared_and_others_are_not(tmp_path: Path, capsys) -> None:
    table = tmp_path / "all.csv"
    rows = [("jax", "a", 64, 150), ("pytorch", "a", 64, 100), ("pytorch", "b", 64, 100), ("mxnet", "a", 32, 100)]
    lines = [f"1,1,{rate + n},{batch},{name},{net}" for name, net, batch, rate in rows for n in range(3)]
    table.write_text("\n".join(["gpus,nodes,samples_per_second,batch,config.framework,net", *lines]))
    said = " ".join(printed(capsys, table, "--full", "--only", "csv").split())
    assert "all [config.framework=jax, net=a] is faster than all [config.framework=pytorch, net=a]: 1.50×" in said
    assert said.count("is faster than") == 1
    assert "3 runs each; corrected p" in said
    assert "; imported)" in said
    # pytorch b with pytorch a and jax a; mxnet a with jax a and pytorch a; and both differ for pytorch b and mxnet.
    assert "3 pairs of series not compared: they differ in net, so perhaps in their work" in said
    assert "2 pairs of series not compared: they differ in batch, so perhaps in their work" in said
    table.write_text("\n".join(line.replace(",64,", ",,") for line in table.read_text().split("\n")))
    said = " ".join(printed(capsys, table, "--full", "--only", "csv").split())
    assert "not compared: their batch is not stated" in said
    assert "is faster than" not in said


def test_different_units_are_not_compared(table: Path, tmp_path: Path, capsys) -> None:
    tokens = write(tmp_path / "tokens.csv", head="gpus,nodes,tokens_per_second,framework")
    said = printed(capsys, "compare", table, tokens, code=2)
    assert "no point of" in said
    assert "of the same number of GPUs and unit, measured in one way; mine" in said


def test_logs_of_mlperf_are_read_back_as_they_were_exported(study: StudyBuilder, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for gpus in (1, 2):
        study.add(spec_of(gpus), Logs(block_seconds=[1.0, 1.1, 0.9, 1.0]))
    study.add(spec_of(4), Logs(), result={"status": "failed", "reason": "rank 1 ended with signal 9"})
    printed(capsys, "export", study.folder, "mlperf")
    logs = study.folder / "exports" / "mlperf"
    said = " ".join(printed(capsys, logs, "--only", "csv", "--out", study.folder / "again").split())
    assert "mlperf reaches 2.00× speedup on 2 GPUs: 100 % efficiency (imported, single run)." in said
    assert "No figure for 4 GPUs (failed)." in said
    assert "1,280" in said  # 10 x 128 samples a second
    assert "weak scaling, 128 per GPU" in said


def test_a_log_of_mlperf_says_how_many_gpus_it_ran_on_or_is_refused(tmp_path: Path, capsys) -> None:
    line = ':::MLLOG {{"namespace": "", "time_ms": {}, "event_type": "X", "key": "{}", "value": {}, "metadata": {}}}\n'
    facts = line.format(0, "global_batch_size", 512, "{}") + line.format(0, "number_of_nodes", 2, "{}")
    times = line.format(1000, "run_start", "null", "{}")
    stops = line.format(5000, "eval_accuracy", 0.5, '{"samples_count": 8000}')
    stops += line.format(9000, "run_stop", "null", '{"status": "success"}')
    log = tmp_path / "result_0.txt"
    log.write_text(f"some other line\n{facts}{times}0: {stops}:::MLLOG torn")
    assert "does not say on how many GPUs it ran" in printed(capsys, log, code=2)
    log.write_text(facts + line.format(0, "accelerators_per_node", 8, "{}") + times + stops)
    said = printed(capsys, log, "--only", "csv")
    assert "1,000 samples/s on 16 GPUs" in said  # 8000 samples in 8 s


def test_a_mistake_in_a_table_is_one_line_without_a_traceback(tmp_path: Path, analyse) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("gpus,samples_per_second\n1,fast\n")
    process = analyse(path)
    assert process.returncode == 2
    assert process.stderr == (
        f"python -m analysis: {path}, line 2: samples_per_second is 'fast'; give a number above 0\n"
    )


def test_a_folder_without_a_study_is_still_refused(tmp_path: Path, capsys) -> None:
    assert "is not a study, it has no study.json" in printed(capsys, tmp_path, code=2)
    (tmp_path / "run.log").write_text("step 1\n")
    said = printed(capsys, tmp_path, code=2)
    assert "give a folder such as results/<study>, or --pattern for a folder of logs" in said
