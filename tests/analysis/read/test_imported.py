"""Tables of measurements from elsewhere as the reader sees them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.base.errors import StudyError
from analysis.measures.speedup import points_of
from analysis.read.imported import read_imported
from analysis.read.imported_columns import Reading
from analysis.read.study import Study
from analysis.tables.point import Point

HEAD = "gpus,samples_per_second\n"


def table(tmp_path: Path, text: str, name: str = "mine.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str) -> Study:
    return read_imported(table(tmp_path, text))


def points(tmp_path: Path, text: str) -> list[Point]:
    return points_of(read(tmp_path, text).runs)


def test_a_row_is_a_run_and_equal_rows_are_runs_of_one_point(tmp_path: Path) -> None:
    one, two = points(tmp_path, HEAD + "1,100\n2,190\n2,210\n")
    assert (one.gpus, one.samples_per_second, one.runs_completed) == (1, 100, 1)
    assert one.samples_per_second_basis == "no interval: a single measurement"
    assert (two.runs_completed, two.samples_per_second_basis) == (2, "2 runs")
    assert two.samples_per_second == pytest.approx(2 / (1 / 190 + 1 / 210))
    assert two.speedup == pytest.approx(1.995)  # 199.5 / 100
    assert all("imported" in point.marks for point in (one, two))


def test_seconds_per_step_and_a_batch_give_the_throughput(tmp_path: Path) -> None:
    one, two = points(tmp_path, "gpus,seconds_per_step,batch\n1,0.5,64\n2,0.5,128\n")
    assert (one.samples_per_second, two.samples_per_second) == (128, 256)
    assert (one.step_seconds, one.global_batch, two.batch_per_gpu) == (0.5, 64, 64)


def test_without_a_batch_the_time_of_a_step_is_unknown(tmp_path: Path) -> None:
    (point,) = points(tmp_path, HEAD + "1,100\n")
    assert (point.step_seconds, point.global_batch, point.batch_per_gpu) == (None, None, None)
    assert point.label == "mine (batch not stated)"


@pytest.mark.parametrize(
    ("batches", "labels"),
    [
        ((64, 128), {"mine (weak scaling, 64 per GPU)"}),
        ((64, 64), {"mine (strong scaling, global batch 64)"}),
        ((64, 100), {"mine (weak scaling, 64 per GPU)", "mine (weak scaling, 50 per GPU)"}),
    ],
)
def test_the_batches_say_how_it_scales(tmp_path: Path, batches: tuple[int, int], labels: set[str]) -> None:
    text = f"gpus,samples_per_second,batch\n1,100,{batches[0]}\n2,190,{batches[1]}\n"
    assert {point.label for point in points(tmp_path, text)} == labels


def test_other_columns_tell_series_apart(tmp_path: Path) -> None:
    text = "gpus,samples_per_second,framework,site\n1,100,pytorch,a\n2,190,pytorch,a\n1,90,jax,a\n"
    assert [point.detail for point in points(tmp_path, text)] == ["framework=jax", *["framework=pytorch"] * 2]


def test_tokens_are_counted_as_such(tmp_path: Path) -> None:
    (point,) = points(tmp_path, "gpus,tokens_per_second\n8,50000\n")
    assert point.rate_unit == "tokens/s"


def test_nodes_come_from_their_column_or_from_gpus_per_node(tmp_path: Path) -> None:
    assert [p.nodes for p in points(tmp_path, "gpus,nodes,samples_per_second\n4,1,1\n8,2,2\n")] == [1, 2]
    assert [p.nodes for p in points(tmp_path, "gpus,gpus_per_node,samples_per_second\n2,4,1\n12,4,2\n")] == [1, 3]
    assert "every size is taken to be on one node" in str(read(tmp_path, HEAD + "8,1\n").remarks)


def test_a_run_that_did_not_finish_is_one_without_figures(tmp_path: Path) -> None:
    text = "gpus,samples_per_second,State\n1,100,finished\n2,,crashed\n"
    one, two = points(tmp_path, text)
    assert (one.status, two.status) == ("completed", "failed")
    assert "State is crashed" in str(two.reasons)


def test_an_export_of_wandb_is_read(tmp_path: Path) -> None:
    text = (
        '"Name","State","Notes","User","Tags","Created","Runtime","Sweep","num_gpus","optimizer","_step","loss",'
        '"train/train_samples_per_second"\n'
        '"brave-1","finished","-","me","","2026-01-02T03:04:05.000Z","61","","1","adam","100","0.71","100"\n'
        '"calm-2","finished","-","me","","2026-01-02T03:06:05.000Z","62","","2","adam","100","0.72","190"\n'
        '"deep-3","finished","-","me","","2026-01-02T03:07:05.000Z","61","","4","adam","100","0.73","350"\n'
        '"easy-4","crashed","-","me","","2026-01-02T03:08:05.000Z","10","","8","adam","9","0.74",""\n'
    )
    study = read(tmp_path, text)
    found = points_of(study.runs)
    assert [(p.gpus, p.samples_per_second) for p in found] == [(1, 100), (2, 190), (4, 350), (8, None)]
    assert len({point.series for point in found}) == 1
    assert study.runs[0].run_id == "brave-1, line 2"
    assert "taken for results, since every row has another fraction: 'loss'; --series-columns" in study.problems[0]


def test_columns_are_kept_apart_or_left_out_on_request(tmp_path: Path) -> None:
    rows = [f"{2**n},{100 * 2**n},{n}.5,{n // 2},{n}" for n in range(4)]
    path = table(tmp_path, "\n".join(["gpus,samples_per_second,lr,half,seed", *rows]))
    assert [point.detail for point in points_of(read_imported(path).runs)] == ["half=0", "half=0", "half=1", "half=1"]
    kept = read_imported(path, Reading(series=("lr", "seed"), ignore=("half",)))
    assert [point.detail for point in points_of(kept.runs)] == [f"lr={n}.5, seed={n}" for n in range(4)]
    assert kept.problems == ()
    with pytest.raises(StudyError, match=r"--ignore-columns: .* has no column 'hafl'; it has gpus, "):
        read_imported(path, Reading(ignore=("hafl",)))


def test_what_a_table_does_not_state_is_given(tmp_path: Path) -> None:
    path = table(tmp_path, HEAD + "4,100\n16,300\n")
    found = points_of(read_imported(path, Reading(batch_per_gpu=8, gpus_per_node=4)).runs)
    assert [(point.nodes, point.global_batch) for point in found] == [(1, 32), (4, 128)]


def test_an_export_of_mlflow_is_read(tmp_path: Path) -> None:
    text = (
        "run_id,experiment_id,status,artifact_uri,start_time,end_time,metrics.samples_per_second,metrics.loss,"
        "params.world_size,params.lr,tags.mlflow.user\n"
        "a1,0,FINISHED,x,1,2,100,0.5,1,0.1,me\nb2,0,FINISHED,x,3,4,190,0.6,2,0.1,me\nc3,0,FAILED,x,5,6,,,4,0.1,you\n"
    )
    found = points(tmp_path, text)
    assert [(p.gpus, p.samples_per_second, p.status) for p in found] == [
        (1, 100, "completed"),
        (2, 190, "completed"),
        (4, None, "failed"),
    ]
    assert len({point.series for point in found}) == 1


def test_a_parquet_file_is_read_as_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"gpus": [1, 2], "samples_per_second": [100.0, 190.0], "lr": [0.1, None]}), path)
    assert [(run.gpus, run.samples_per_second) for run in read_imported(path).runs] == [(1, 100), (2, 190)]
    path.write_bytes(b"PAR1 and then no more")
    with pytest.raises(StudyError, match="cannot be read as Parquet"):
        read_imported(path)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_a_byte_order_mark_are_read(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("\ufeff" + (HEAD + "2,100\n\n").replace(",", delimiter), encoding="utf-8")
    assert read_imported(path).runs[0].gpus == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; its first line names the columns"),
        ("\n \n", "is empty"),
        (HEAD, "has no measurement, only its first line"),
        ("gpus,speed\n1,2\n", "no column samples_per_second, tokens_per_second or seconds_per_step in its first line"),
        ("a,b\n1,2\n", "no column gpus and samples_per_second, tokens_per_second or seconds_per_step"),
        ("gpus,seconds_per_step\n1,2\n", "no column batch"),
        (HEAD + "1,100\nx,100\n", "line 3: gpus is 'x'; give a whole number from 1 on"),
        (HEAD + "1.5,100\n", "line 2: gpus is '1.5'"),
        (HEAD + "0,100\n", "line 2: gpus is '0'"),
        (HEAD + "-2,100\n", "line 2: gpus is '-2'"),
        (HEAD + ",100\n", "line 2: gpus is empty"),
        (HEAD + "1,\n", "line 2: samples_per_second is empty; give a number above 0"),
        (HEAD + "1,0\n", "line 2: samples_per_second is '0'; give a number above 0"),
        (HEAD + "1,-3\n", "line 2: samples_per_second is '-3'"),
        (HEAD + "1,nan\n", "line 2: samples_per_second is 'nan'"),
        (HEAD + "1,1e999\n", "line 2: samples_per_second is '1e999'"),
        (HEAD + "1,1_000\n", "line 2: samples_per_second is '1_000'"),
        (HEAD + '1,"1,000"\n', "line 2: samples_per_second is '1,000'"),
        (HEAD + "1,100,7\n", "line 2: 3 values for 2 columns"),
        (HEAD + "1\n", "line 2: 1 values for 2 columns"),
        ("gpus,nodes,samples_per_second\n1,2,100\n", "line 2: 1 GPUs on 2 nodes"),
        ("gpus,gpus,samples_per_second\n1,1,100\n", "column 'gpus' is there twice"),
        ("gpus,world_size,samples_per_second\n1,1,1\n", "columns 'gpus' and 'world_size' both mean gpus"),
        (HEAD + '1,"100\n', "no CSV"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StudyError) as refused:
        read(tmp_path, text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes((HEAD + "1,100\n").encode() + "2,\xe9\n".encode("latin-1"))
    with pytest.raises(StudyError, match="line 3: not UTF-8"):
        read_imported(path)


CELL = st.one_of(
    st.text(max_size=8), st.integers(-3, 9).map(str), st.floats().map(str), st.sampled_from("\0\x1b\u202e\u2028")
)
HEADER = st.one_of(st.sampled_from(["gpus", "samples_per_second", "nodes", "batch", "run", "state", "a", "_b"]), CELL)


@settings(max_examples=150)
@given(st.lists(HEADER, max_size=4), st.lists(st.lists(CELL, max_size=4), max_size=5), st.booleans())
def test_any_text_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, headers: list[str], rows: list[list[str]], whole: bool
) -> None:
    """whole: each row has a value for each column, and a throughput."""
    lines = [["gpus", "samples_per_second", *headers]]
    for row in rows:
        cells = [*row, *["x"] * len(headers)][: len(headers)]
        lines.append(["4", "100", *cells] if whole else row)
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        csv.writer(file).writerows(lines)
    refused = None
    try:
        study = read_imported(path)
    except StudyError as error:
        refused = str(error)
    if refused is not None:
        assert refused.isprintable()
        return
    for point in points_of(study.runs):
        json.dumps(point.row())
        assert point.name.isprintable()


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("table")
    for name in ("mine.csv", "mine.parquet"):
        (folder / name).write_bytes(content)
        with pytest.raises(StudyError):
            read_imported(folder / name)


VALUE = st.recursive(
    st.none() | st.integers(-2, 9) | st.floats() | st.text(max_size=5), lambda v: st.lists(v, max_size=2)
)
EVENT = st.fixed_dictionaries(
    {"key": st.sampled_from(["number_of_ranks", "tracked_stats", "run_start", "run_stop", "submission_platform"])},
    optional={
        "value": VALUE | st.fixed_dictionaries({"throughput": VALUE}),
        "time_ms": VALUE,
        "metadata": VALUE | st.fixed_dictionaries({}, optional={"status": VALUE, "throughput": VALUE, "gpus": VALUE}),
    },
)


@settings(max_examples=150)
@given(st.lists(EVENT, min_size=1, max_size=6))
def test_any_log_of_mlperf_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, events: list) -> None:
    path = tmp_path_factory.mktemp("logs") / "result_0.txt"
    path.write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))
    refused = None
    try:
        study = read_imported(path)
    except StudyError as error:
        refused = str(error)
    if refused is None:
        assert [point.gpus for point in points_of(study.runs)] >= [1]
    else:
        assert refused.isprintable()
