"""`python -m analysis backtest` on published measurements, and on files that allow few or no conclusions."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import PROJECT

from analysis.__main__ import COMMANDS
from analysis.base.errors import StudyError
from analysis.scaling.backtest import all_folds, coverage, summary, summary_of, try_series
from analysis.scaling.baselines import FLAT, LINEAR, RING
from analysis.scaling.measurements import COLUMNS, first_series, read_table
from analysis.scaling.single_node import bandwidth_in, parameters_of
from harness.core.spec import STRONG, WEAK

PUBLISHED = PROJECT / "benchmarks" / "published" / "throughput.csv"
LINE = {
    "source": "made",
    "system": "made, 8x GPU, 100 Gb/s",
    "gpus_per_node": 8,
    "framework": "PyTorch",
    "model": "ResNet-50",
    "precision": "FP32",
    "batch_per_gpu": 128,
    "data": "synthetic",
    "nodes": 1,
}


def table_text(*rows: dict) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows([{**LINE, **row} for row in rows])
    return text.getvalue()


def rows_of(*rates: tuple[object, object], **changes: object) -> list[dict]:
    return [{"gpus": gpus, "samples_per_second": rate, **changes} for gpus, rate in rates]


@pytest.fixture
def table(tmp_path: Path):
    def read(*rows: dict):
        path = tmp_path / "table.csv"
        path.write_text(table_text(*rows), encoding="utf-8")
        return read_table(path)

    return read


@pytest.fixture(scope="module")
def published():
    return [try_series(series) for series in read_table(PUBLISHED).series]


def test_published_series_are_those_of_the_file(published) -> None:
    assert len(published) == 23
    assert sum(len(test.series.sizes) for test in published) == 91


def test_bayesian_law_is_better_than_the_ring_term_in_mean_and_worst_case(published) -> None:
    own, ring = summary(published), summary(published, RING)
    assert own.count == ring.count
    assert own.mean < ring.mean
    assert own.worst < ring.worst


def test_peers_have_the_errors_that_are_known_of_them(published) -> None:
    """Mean and worst error in per cent over the eight series of four nodes; calculated independently."""
    nodes = [test for test in published if test.series.largest.nodes == 4]
    stated = {LINEAR: (14.1, 28.3), FLAT: (3.2, 7.2), RING: (1.9, 4.2)}
    for name, figures in stated.items():
        found = summary(nodes, name)
        assert (round(100 * found.mean, 1), round(100 * found.worst, 1)) == figures


def test_intervals_hold_what_was_published(published) -> None:
    shares = coverage(all_folds(published))
    assert 0.85 <= shares[1].estimate <= 0.95
    assert 0.40 <= shares[0].estimate <= 0.60


def test_from_one_node_and_a_bandwidth_alone(published) -> None:
    folds = [test.one_node for test in published if test.one_node is not None]
    assert len(folds) == 8
    assert summary_of([fold.error for fold in folds]).mean <= 0.08


def test_bandwidths_and_parameters_are_read_from_names() -> None:
    assert bandwidth_in("4 nodes, 8x V100-SXM2-16GB, InfiniBand EDR 100 Gb/s") == 12.5e9
    assert bandwidth_in("NVLink, 25 GB/s") == 25e9
    assert bandwidth_in("1 DGX-1 node, 8x V100-SXM2-16GB") is None
    assert parameters_of("ResNet50 V1.5") == parameters_of("resnet-50") == 25.6e6
    assert parameters_of("BERT-Large, Uncased") == 340e6
    assert parameters_of("own network") is None


def test_constant_batch_per_gpu_is_weak_and_constant_global_batch_strong(table) -> None:
    (weak,) = table(*rows_of((1, 100), (2, 190))).series
    assert weak.scaling == WEAK
    halves = [{"gpus": n, "batch_per_gpu": 128 // n, "samples_per_second": 100 * n**0.9} for n in (1, 2, 4)]
    (strong,) = table(*halves).series
    assert (strong.scaling, len(strong.sizes)) == (STRONG, 3)
    found = try_series(strong)
    assert found.largest is not None
    assert found.largest.in_90


def test_unequal_batches_are_not_one_series(table) -> None:
    found = table(*rows_of((1, 100), (2, 190)), *rows_of((4, 500), batch_per_gpu=256)).series
    assert [len(series.sizes) for series in found] == [2, 1]
    assert all("did other work" in series.remarks[0] for series in found)


def test_mixed_machines_are_not_one_series(table) -> None:
    found = table(*rows_of((1, 100)), *rows_of((2, 150), system="another")).series
    assert [try_series(series).why_not for series in found] == ["one size only: how it scales cannot be concluded"] * 2


def test_repeated_measurements_are_taken_together(table) -> None:
    (series,) = table(*rows_of((1, 100), (2, 150), (2, 300))).series
    assert series.rates == pytest.approx((100, 200))  # the harmonic mean of 150 and 300
    assert "measured more than once" in series.remarks[0]


def test_unusable_lines_are_left_out_and_named(table) -> None:
    unusable = [(4, "nan"), (8, 0), (8, -5), (8, ""), (8, "fast"), (8, "inf")]
    found = table(*rows_of((1, 100), (2, 190), *unusable), *rows_of((64, 5000)), *rows_of((2, 7), nodes=4))
    assert [len(series.sizes) for series in found.series] == [2]
    assert found.remarks[0].startswith("8 of 10 lines are left out: line 4: samples_per_second is 'nan'")


def test_whole_numbers_may_be_written_with_a_point_and_unstated_batches_left_empty(table) -> None:
    (series,) = table(*rows_of(("1.0", 100), ("2.0", 190), batch_per_gpu="", gpus_per_node="8.0")).series
    assert [size.gpus for size in series.sizes] == [1, 2]
    assert series.remarks == ("the batch per GPU is not stated, and taken to be the same in all rows",)


def test_more_series_than_are_tried_is_said(table) -> None:
    rows = [row for name in "abc" for row in rows_of((1, 100), (2, 190), model=name)]
    found = first_series(table(*rows), 2)
    assert len(found.series) == 2
    assert found.remarks == ("3 series: the first 2 of the file are tried; cut the file to try others",)


def test_a_single_point_as_a_basis_gives_a_wide_interval_and_says_so(table) -> None:
    (series,) = table(*rows_of((1, 100), (8, 700))).series
    found = try_series(series)
    assert found.largest is not None
    assert found.largest.predicted.central90.high / found.largest.predicted.central90.low > 1.2


def test_sizes_that_are_too_close_are_not_predicted_from_each_other(table) -> None:
    (series,) = table(*rows_of((3, 290), (4, 380))).series
    assert try_series(series).why_not == "no size up to half of 4 GPUs: nothing to predict it from"


def test_throughput_that_falls_is_said(table) -> None:
    (series,) = table(*rows_of((1, 100), (2, 150), (4, 120))).series
    assert "falls from 2 GPUs to 4 GPUs" in (series.falls() or "")
    found = try_series(series)
    assert found.largest is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column source"),
        ("gpus,samples_per_second\n1,100\n", "no column source, system"),
        (table_text(), "has no measurement, only its first line"),
        (table_text(*rows_of((1, 0))), "nothing can be concluded"),
        ("a\0b", "no column source"),
    ],
)
def test_files_without_a_measurement_are_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match=said):
        read_table(path)


def test_no_file_and_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(StudyError, match="cannot be read"):
            read_table(path)


def backtest(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "analysis", "backtest", *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        # The width without a terminal, wherever the tests run.
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, "PYTHONPATH": str(PROJECT)},
    )


def test_command_prints_a_table_and_the_same_as_json(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rates = ((1, 100), (2, 195), (4, 380), (8, 750))
    path.write_text(table_text(*rows_of(*rates), *rows_of((1, 50), model="VGG-16")), encoding="utf-8")
    done = backtest(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pooled law" in done.stdout
    assert "1 of 1 (20.7–100.0 %)" in done.stdout  # Wilson's interval of one of one: 1 / (1 + 1.96²) and up
    assert "Extra-P: not run" in done.stdout
    assert "one size only" in done.stdout
    found = json.loads(backtest(path, "--json").stdout)
    first, second = found["series"]
    assert first["used_gpus"] == [1, 2, 4]
    assert first["largest"]["measured"] == 750
    assert first["peers"]["linear"] == 800
    assert len(first["left_out"]) == 4
    assert second["largest"] is None
    held = found["all"]["pooled law"]["coverage"]
    assert held["predictions"] == 5
    for share in ("in_50", "in_90"):
        low, high = held[f"{share}_interval"]
        assert 0 <= low <= held[share] <= high <= 1
        assert high - low > 0.3


@pytest.mark.parametrize("command", ["report", *COMMANDS])
def test_help_of_the_commands_imports_nothing_heavy(command: str) -> None:
    code = (
        "import sys\n"
        "from analysis.__main__ import main\n"
        f"try:\n    main([{command!r}, '--help'])\nexcept SystemExit as done:\n    assert done.code == 0\n"
        "sys.exit(bool({'pandas', 'numpy', 'scipy', 'rich', 'altair'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"usage: python -m analysis {command}" in done.stdout


def test_user_mistakes_end_with_one_sentence_and_code_2(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(table_text(*rows_of((1, 100), (2, 190))), encoding="utf-8")
    for arguments, said in (
        ((tmp_path / "none.csv",), "cannot be read"),
        ((path, "bandwidth_gbit=-1"), "give a number above 0"),
        ((path, "bandwidth=1"), "there are bandwidth_gbit="),
        ((path, "--extrap", sys.executable), "has no Extra-P that runs"),
    ):
        done = backtest(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
